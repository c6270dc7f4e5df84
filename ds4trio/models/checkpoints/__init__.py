"""Weights of Hugging Face folders, quantised or not, as float tensors under their plain names.

``opening`` chooses by ``quantization_config``; each way of quantising has a file of its own, which
says what its tensors mean; ``assembly`` has what they share.
"""
