"""The kinds of sample that a record may become."""
