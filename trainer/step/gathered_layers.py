"""Layers that are given the rows of all replicas, because they compute with statistics of the rows that they are given.

Each replica computes such a layer on the whole batch, and goes on with its own rows of what comes out. So the layer computes
what it computes on one device, whatever it does with rows; its gradient is that of one device, since rows that are gathered
get what all replicas give them.

Context: replica, in the graph of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.edges import next_number
from ...compat.layers import get_keras_mask, set_keras_mask
from ...compat.pruning import depends_on_inputs
from ...distribute.collectives import refuse_collective
from ...distribute.gathered_rows import own_rows_of_all
from ...distribute.step_context import ALL_ROWS_HERE, StepContext, current_step


def layer_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.layers.Layer.__call__`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = current_step()
        if step is None or step.num_replicas == 1:
            return original(self, *args, **kwargs)
        if step.observer is not None:
            graph = tf.compat.v1.get_default_graph()
            before = next_number(graph)
            outputs = _called(original, self, args, kwargs, step)
            step.observer.called(self, outputs, graph, before, next_number(graph))
            return outputs
        return _called(original, self, args, kwargs, step)

    return call


def _called(original: Callable[..., Any], layer: Any, args: Any, kwargs: Any, step: StepContext) -> Any:
    if id(layer) not in step.rules.gathered_layers:
        return original(layer, *args, **kwargs)
    refuse_collective(
        f"the layer {layer.name!r}, which computes with statistics of the rows that it is given,"
    )
    given: Any = keras.tree.map_structure(
        lambda leaf: own_rows_of_all(leaf, each_its_own=True) if _holds_rows(leaf) else leaf, (args, kwargs)
    )
    args, kwargs = given
    with step.noting(ALL_ROWS_HERE):
        outputs = original(layer, *args, **kwargs)
    return keras.tree.map_structure(lambda leaf: _own(leaf, step) if _has_rows(leaf) else leaf, outputs)


def _holds_rows(value: Any) -> bool:
    """Whether what a layer is given are rows of the batch, and not what constants and variables make on every replica."""
    return _has_rows(value) and depends_on_inputs(value)


def _has_rows(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and bool(value.shape.rank) and value.shape[0] is None


def _own(value: tf.Tensor, step: StepContext) -> tf.Tensor:
    """This replica's rows of a tensor with those of all; one of the others' where it has none, as of its inputs."""
    each = tf.shape(value)[0] // tf.maximum(step.global_rows, 1)
    first = tf.minimum(step.rows_before, tf.maximum(step.global_rows, 1) - 1) * each
    last = first + tf.maximum(step.rows, 1) * each
    own = value[first:last]
    mask = get_keras_mask(value)
    if mask is not None:
        set_keras_mask(own, mask[first:last])
    return own
