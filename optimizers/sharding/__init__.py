"""The stages of an optimizer on shards: each replica holds a part of the slots and updates a part of the weights."""
