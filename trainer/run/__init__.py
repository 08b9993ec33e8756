"""The compilation and the loops of steps, and the loop over epochs: read `fit_loop.py` first."""
