"""The Hugging Face hub: names of models, what is needed of them, and fetching it."""
