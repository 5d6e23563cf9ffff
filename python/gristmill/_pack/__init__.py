"""`gristmill pack` and `gristmill verify`: packed rows in files, and whether they are what their source says."""
