"""The loops of `fit`, `evaluate` and `predict` over epochs and compiled calls: read `fit_loop.py` first."""
