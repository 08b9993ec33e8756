"""Training state of which each replica holds a part: its shards, their collectives, and how it is seen as a whole."""
