"""What a case is built of: the user code and the objects of Keras that its words stand for."""
