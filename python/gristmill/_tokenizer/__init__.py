"""`Encoder`: where a tokenizer comes from, and what it gives."""
