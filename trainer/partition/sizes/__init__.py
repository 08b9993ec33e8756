"""Sizes, shapes and bounds of a step's tensors, for every batch."""
