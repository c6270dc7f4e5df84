"""Vocabularies in the forms that models have, as the tokenizers library wants them."""
