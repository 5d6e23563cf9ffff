"""`gristmill demo`: packed rows of a sample of real text."""
