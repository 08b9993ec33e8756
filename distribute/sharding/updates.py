"""`strategy.extended.update` where a variable that is held in shards takes part: Keras' callbacks call it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .value import ShardedValue


def update_sharded_too(strategy: tf.distribute.Strategy) -> None:
    """Lets `strategy.extended.update(variable, fn, args)` take sharded variables, which `fn` sees as whole ones.

    TensorFlow's own runs `fn` on each copy of the variable with the copies of the arguments; shards are no copies.
    """
    original: Callable[..., Any] = strategy.extended.update
    inside = threading.local()

    def update(
        var: Any, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(each, ShardedValue) for each in (var, *args, *kwargs.values())):
            return original(var, fn, args=args, kwargs=kwargs, group=group)
        if getattr(inside, "an_update", False):  # a copied variable is assigned a sharded one
            args, kwargs = tf.nest.map_structure(_as_tensor, (tuple(args), kwargs))
            return original(var, fn, args=args, kwargs=kwargs, group=group)
        inside.an_update = True
        try:
            return fn(var, *args, **kwargs)
        finally:
            inside.an_update = False

    strategy.extended.update = update  # pyright: ignore[reportAttributeAccessIssue]


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, ShardedValue) else value
