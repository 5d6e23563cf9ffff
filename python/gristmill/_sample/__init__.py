"""What a record becomes."""
