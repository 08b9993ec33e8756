"""Graphs of TensorFlow: reading, copying and rewriting their operations."""
