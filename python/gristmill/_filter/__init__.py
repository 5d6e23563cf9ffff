"""Filters: the expressions of `keep=`, from text to the programs that the core evaluates."""
