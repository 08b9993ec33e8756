"""Sharded training state: its shards, their collectives, and its use as a whole."""
