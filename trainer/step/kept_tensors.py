"""Tensors that layers of the user's own keep as attributes, to be read later in the step: each replica's its own.

A layer is one object for all replicas of a process, and their threads take turns at each collective. What a replica has
put into an attribute before (a VAE's latent numbers, features for another loss) is there again when its thread goes on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ...compat.layers import is_own, layers_of
from ...compat.variables import stateless_scope
from .collected_writes import CollectedWrites, WriteInNestedGraph

_OF_KERAS = ("_losses", "_losses_override", "_loss_ids")  # see `replaced.py`: "Layer._clear_losses"


class _Local(threading.local):
    layers: tuple[Any, ...] = ()


_local = _Local()


@contextlib.contextmanager
def tensors_kept_by(model: Any) -> Iterator[None]:
    """Inside, what this thread's replica keeps in the user's own layers of `model` (None: of no model) stays its own."""
    outer = _local.layers
    _local.layers = () if model is None else tuple(filter(is_own, layers_of(model)))
    try:
        yield
    finally:
        _local.layers = outer


@contextlib.contextmanager
def kept_rows_become(change: Callable[[tf.Tensor], tf.Tensor], rows: Any) -> Iterator[None]:
    """Inside, what the layers keep of rows (tensors `[rows, ...]`) is what `change` makes of it.

    Args:
        change: a function of a tensor.
        rows: int, or scalar tensor where it is not known: tensors of which it is not known either are taken for rows.
    """
    before = [(layer, _tensors_in(layer)) for layer in _local.layers]
    for layer, tensors in before:
        vars(layer).update({name: _changed(value, change, rows) for name, value in tensors.items()})
    try:
        yield
    finally:
        for layer, tensors in before:
            vars(layer).update(tensors)


def _changed(value: Any, change: Callable[[tf.Tensor], tf.Tensor], rows: Any) -> Any:
    if isinstance(value, dict):
        return {key: _changed(each, change, rows) for key, each in value.items()}
    if isinstance(value, list | tuple):
        changed = [_changed(each, change, rows) for each in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return change(value) if _has_rows(value, rows) else value


def _has_rows(value: Any, rows: Any) -> bool:
    if not isinstance(value, tf.Tensor) or not value.shape.rank:
        return False
    return value.shape[0] == rows if isinstance(rows, int) else value.shape[0] is None


def merge_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in for the `_merge_call` of replicas with threads."""

    def merge(self: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        scope = stateless_scope()
        if isinstance(scope, CollectedWrites) and scope.is_in_function:
            raise WriteInNestedGraph
        kept = [(layer, _tensors_in(layer)) for layer in _local.layers]
        result = original(self, fn, args, kwargs)
        for layer, tensors in kept:
            vars(layer).update(tensors)
        return result

    return merge


def _tensors_in(layer: Any) -> dict[str, Any]:
    return {
        name: value for name, value in vars(layer).items() if name not in _OF_KERAS and _holds_tensors(value)
    }


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return any(map(_holds_tensors, value.values() if isinstance(value, dict) else value))
    return tf.is_tensor(value) and not isinstance(value, tf.Variable)
