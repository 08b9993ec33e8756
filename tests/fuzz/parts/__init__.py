"""The user code and Keras objects that the options of a case stand for."""
