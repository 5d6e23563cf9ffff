"""Saved states: their form, how they join, and the files of a checkpoint."""
