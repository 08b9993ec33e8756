"""Private names of Keras: its layers, optimizers, variables, trainer, callbacks and random state."""
