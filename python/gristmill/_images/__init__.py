"""Images: sizes from headers, and pixels."""
