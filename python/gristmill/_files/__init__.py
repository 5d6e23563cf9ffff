"""The files that `gristmill pack` writes and `gristmill verify` reads."""
