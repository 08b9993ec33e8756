r"""Losses that layers add with `add_loss`, exact over several replicas.

A loss in a step is in units of a local mean (see `exact_loss`). An added loss is a number of which nothing is known: a mean
over the rows, which is in these units, or a sum over them (as in Keras' own example), which must be divided by the share of
the replica:

.. math:: L = \sum_r share_r \frac{S_r}{share_r} = \sum_r S_r

Which of the two it is, is found out once, before the first step: the model is called on a few rows that are made up, and on
the same rows twice. A mean stays as it is, a sum doubles.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import layers_of, takes_training
from ...compat.training import compute_output_spec
from ...distribute.step_context import StepContext
from .collected_writes import CollectedWrites

_ROWS = 3
_ANY_SIZE = 4  # of a dimension that is left open
_ADDS = "_unisono_adds_losses"
_SUMS = "_unisono_added_sums"
_HEARD = "_unisono_added_losses_heard"


class _Listening(threading.local):
    values: dict[int, list[float]] | None = None


_listening = _Listening()


def noted(layer: Any, loss: Any) -> None:
    """A layer adds a loss outside of a step: while it is built, or while we listen."""
    if not type(layer).__module__.startswith("keras.src."):  # those add what their regularizers say: means
        object.__setattr__(layer, _ADDS, True)
    if _listening.values is not None:
        of_layer = _listening.values.setdefault(id(layer), [])
        of_layer.extend(float(tf.reduce_sum(x)) for x in keras.tree.flatten(loss))


def in_units_of_a_mean(layer: Any, loss: Any, step: StepContext) -> Any:
    """What the layer adds on this replica, as every loss is in a step. Context: replica, with several replicas."""
    sums = layer.__dict__.get(_SUMS, ())
    leaves = keras.tree.flatten(loss)
    counts = step.notes.setdefault("added_losses", {})
    first = counts.get(id(layer), 0)
    counts[id(layer)] = first + len(leaves)
    units = [
        tf.math.divide_no_nan(leaf, step.share(leaf.dtype)) if number in sums and tf.is_tensor(leaf) else leaf
        for number, leaf in enumerate(leaves, first)
    ]
    return keras.tree.pack_sequence_as(loss, units)


def find_sums(model: TrainedModel, x_spec: Any) -> None:
    """Finds out which of the losses that the model's layers add are sums over rows.

    Args:
        model: the built model.
        x_spec: nest of `tf.TypeSpec` of its inputs, rows None.

    A model that cannot be called on made-up inputs keeps what `in_units_of_a_mean` takes for granted: means.

    Context: host, cross-replica, eager.
    """
    _hear(model, x_spec)
    layers = [layer for layer in layers_of(model) if layer.__dict__.get(_ADDS)]
    if not layers or all(_SUMS in layer.__dict__ for layer in layers):
        return
    for layer in layers:
        object.__setattr__(layer, _SUMS, ())
    try:
        once = keras.tree.map_structure(lambda spec: _made_up(spec), x_spec)
        twice = keras.tree.map_structure(lambda value: tf.concat([value, value], 0), once)
        values = [_added(model, x) for x in (once, twice)]
    except Exception:
        return
    for layer in layers:
        pairs = zip(*[of_model.get(id(layer), ()) for of_model in values])
        object.__setattr__(layer, _SUMS, tuple(n for n, pair in enumerate(pairs) if _doubles(*pair)))


def _hear(model: TrainedModel, x_spec: Any) -> None:
    """Learns which layers of the user's own add losses: they may have been built before anybody listened."""
    own = [
        layer
        for layer in layers_of(model)
        if not type(layer).__module__.startswith(("keras.src.", "unisono."))
    ]
    if own and not vars(model).get(_HEARD):
        object.__setattr__(model, _HEARD, True)
        with contextlib.suppress(Exception):
            compute_output_spec(_call, model, keras.tree.map_structure(_symbolic, x_spec))


def _symbolic(spec: tf.TensorSpec) -> keras.KerasTensor:
    return keras.KerasTensor(spec.shape, keras.backend.standardize_dtype(spec.dtype))


def _call(model: TrainedModel, x: Any) -> Any:
    return model(x, training=True) if takes_training(model) else model(x)


def _doubles(once: float, twice: float) -> bool:
    """Whether the value is nearer to twice what it was than to what it was (random layers draw anew)."""
    return bool(np.isfinite([once, twice]).all()) and abs(twice - 2 * once) < abs(twice - once)


def _added(model: TrainedModel, x: Any) -> dict[int, list[float]]:
    with _listen() as values, CollectedWrites():
        _call(model, x)
    return values


@contextlib.contextmanager
def _listen() -> Iterator[dict[int, list[float]]]:
    _listening.values = values = {}
    try:
        yield values
    finally:
        _listening.values = None


def _made_up(spec: Any) -> tf.Tensor:
    """A few rows that are all different; zeros for integers (a class, a word), since not all numbers may be allowed."""
    if not isinstance(spec, tf.TensorSpec):
        raise TypeError(f"no rows can be made up for {spec}")
    shape = [_ROWS, *(_ANY_SIZE if size is None else size for size in spec.shape[1:])]
    if spec.dtype == tf.string:
        return tf.fill(shape, "")
    if not spec.dtype.is_floating:
        return tf.zeros(shape, spec.dtype)
    return tf.cast(np.random.default_rng(0).uniform(0.5, 1.5, shape), spec.dtype)
