"""XLA: the rule that chooses it or TensorFlow's plain graph, and its compiled loops."""
