"""The computation of a step: read `train_step.py` first. How steps are compiled and looped is in `run`."""
