"""Adapters with the names and arguments of other people's programs."""
