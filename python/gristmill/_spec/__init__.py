"""The definition of a stream: arguments, lanes and fingerprint."""
