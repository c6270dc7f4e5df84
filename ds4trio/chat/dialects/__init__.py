"""How models write what is no plain answer: one file a family of forms."""
