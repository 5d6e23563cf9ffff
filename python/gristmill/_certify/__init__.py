"""`gristmill certify`: a tokenizer's ids compared with those of the `tokenizers` package, and the certificate of it."""
