"""Callbacks that write models to files."""
