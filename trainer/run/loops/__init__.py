"""The compiled and eager loops over steps of training, evaluation and prediction: read `step_function.py` first."""
