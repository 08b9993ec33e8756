"""What Keras asks of `strategy.extended` where a variable that is held in shards takes part."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .value import ShardedValue


def take_sharded_too(strategy: tf.distribute.Strategy) -> None:
    """Lets two methods of `strategy.extended` take sharded variables.

    - `update(variable, fn, args)`, which callbacks of Keras call: `fn` sees them as whole ones. TensorFlow's own runs `fn`
      on each copy of the variable with the copies of the arguments; shards are no copies.
    - `colocate_vars_with(variable)`, in which optimizers create slots: they are on the replicas' devices in any case.
    """
    _update_sharded_too(strategy)
    colocate: Callable[[Any], Any] = strategy.extended.colocate_vars_with

    def beside(colocate_with_variable: Any) -> Any:
        sharded = isinstance(colocate_with_variable, ShardedValue)
        return contextlib.nullcontext() if sharded else colocate(colocate_with_variable)

    strategy.extended.colocate_vars_with = beside  # pyright: ignore[reportAttributeAccessIssue]


def _update_sharded_too(strategy: tf.distribute.Strategy) -> None:
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
