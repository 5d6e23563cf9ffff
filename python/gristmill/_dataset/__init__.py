"""`PackedDataset` and its iterator: the stream as a Grain dataset."""
