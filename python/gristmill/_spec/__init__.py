"""What defines a stream: its arguments, lanes and fingerprint."""
