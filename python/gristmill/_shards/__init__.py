"""The shards that a dataset reads."""
