"""`LossScaleOptimizer` and its parts: the rule by which the scale moves, and the variables that hold it."""
