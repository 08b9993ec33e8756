"""The stages on shards: each replica holds a part of the optimizer state and updates a part of the weights."""
