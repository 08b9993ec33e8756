"""Training state of which each replica holds a part: where it lives, how it travels, how it is seen as a whole."""
