"""Callbacks that write models and predictions to files."""
