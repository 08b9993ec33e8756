"""Callbacks that show a running fit: the progress bar, TensorBoard, lines of JSON, profiles."""
