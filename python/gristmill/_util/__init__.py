"""Helpers that know nothing of streams: checks of values, local files, text and output."""
