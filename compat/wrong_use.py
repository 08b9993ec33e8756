"""The class of the errors that are raised on purpose in a step."""


class WrongUse(ValueError, TypeError, RuntimeError):
    """The user's code calls the library in a way that it rejects. Any other error of its files in a step is a bug."""

    __init__ = Exception.__init__  # AutoGraph then keeps the class
