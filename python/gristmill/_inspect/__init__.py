"""`gristmill inspect`: the content of files, and the sources of a row."""
