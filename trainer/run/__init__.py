"""How steps are compiled and looped, and how epochs run: read `fit_loop.py` first."""
