"""Responses that outlive their connection: the file they are in, and those still being written."""
