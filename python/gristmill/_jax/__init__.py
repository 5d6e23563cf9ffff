"""Global JAX batches on any number of processes, and checkpoints."""
