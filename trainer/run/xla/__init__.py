"""XLA: the measured choice between it and TensorFlow's plain graph, and its compiled loops."""
