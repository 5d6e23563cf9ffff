"""`gristmill inspect`: what files hold, and where a row comes from."""
