"""The state of a model's training: its position in a `fit`, its variables, its random numbers, and which run it is."""
