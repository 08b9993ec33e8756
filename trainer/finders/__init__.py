"""Finders, which try training steps without side effects: a learning rate, a batch size."""
