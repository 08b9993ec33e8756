"""Steps with user code: traced, partitioned for each layout of the batches, or computed on one replica."""
