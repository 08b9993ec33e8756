"""Variables in parts, used as whole ones by code that knows nothing of them: `keras.ops.take` and `tape.gradient`.

It holds in every `run` of a `ParameterServerStrategy`, TensorFlow's own class included: in steps of `fit`, and in loops of
the user's own. `compat/replaced.py` has the list of what is replaced, with reasons.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...compat.replaced import provide, replaced_functions, wrap
from ...compat.variables import autocast, raw_value
from ..devices import computes_on_gpu
from ..step_context import current_step
from .shards import gradient, lookup
from .updates import shards_of


def _take(original: Any) -> Any:
    def take(x: Any, indices: Any, axis: Any = None) -> Any:
        if isinstance(x, keras.Variable) and axis == 0 and not isinstance(indices, tf.SparseTensor):
            rows = None if raw_value(x) is None else lookup(x, indices)
            if rows is not None:
                return autocast(x, rows)
        return original(x, _for_gpu(indices), axis)

    return take


def _for_gpu(indices: Any) -> Any:
    """In a step on a GPU 64 bits in place of 32: TensorFlow adds to the latter, and reshapes them, on the host."""
    step = current_step()
    if step is None or step.in_xla or tf.executing_eagerly() or not computes_on_gpu():
        return indices
    narrow = isinstance(indices, tf.Tensor | tf.RaggedTensor) and indices.dtype == tf.int32
    return tf.cast(indices, tf.int64) if narrow and indices.shape.rank else indices


def _gradient(original: Any) -> Any:
    def of_whole_variables(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        variables = tf.nest.flatten(sources)
        if not any(map(shards_of, variables)):
            return original(self, target, sources, output_gradients, unconnected_gradients)
        found = gradient(self, target, variables, output_gradients, unconnected_gradients)
        return tf.nest.pack_sequence_as(sources, found)

    return of_whole_variables


def _run(original: Any, *args: Any, **kwargs: Any) -> Any:
    with replaced_functions():
        return original(*args, **kwargs)


provide("numpy.take", _take)
provide("GradientTape.gradient", _gradient)
wrap("run", _run)
