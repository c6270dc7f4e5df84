"""GGUF files: their headers, parts and formats of weights."""
