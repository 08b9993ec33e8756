"""All uses of private names of Keras and TensorFlow, and the functions that are replaced. No other package has any."""
