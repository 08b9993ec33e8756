"""Every private name of Keras and TensorFlow, and the functions of Keras that are replaced. Nothing else touches either."""
