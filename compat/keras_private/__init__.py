"""Private names of Keras: its layers, optimizers, variables, trainer, callbacks and random state."""

from collections.abc import Callable
from typing import Any


def private_method(name: str) -> Callable[..., Any]:
    """Return a function that calls the method `name` of its first argument, as `attrgetter` reads an attribute."""
    return lambda owner, *args, **kwargs: getattr(owner, name)(*args, **kwargs)
