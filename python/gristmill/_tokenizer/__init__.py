"""`Encoder`: loading a tokenizer, and encoding with it."""
