"""One file for each kind of input: arrays, datasets, and batches from Python code, behind the interface `Source`."""
