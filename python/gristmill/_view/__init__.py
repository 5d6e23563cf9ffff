"""`gristmill view`: a page that shows rows, and what they were made of."""
