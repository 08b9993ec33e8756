"""A layer that is called before it was built, on several replicas or in a graph: built once, where variables can be made."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...compat.layers import arguments_of
from ...compat.random_state import thread_state
from ...compat.training import compute_output_spec
from ...optimizers.building import run_in_thread


def build_outside(layer: Any, call_spec: Any) -> None:
    """Builds `layer`, which is not built, for a call that Keras describes with `call_spec`.

    Keras makes variables where a layer is called first. Inside of `strategy.run` that is the thread of one replica, while a
    graph is traced: each replica would make its own, and their initial values would belong to the graph. So they are made in
    another thread, eagerly and in cross-replica context, from the shapes of the arguments.

    Context: replica.
    """
    specs = tf.nest.map_structure(_spec, arguments_of(layer, call_spec))

    def build_once(strategy: tf.distribute.Strategy) -> None:
        state = thread_state()

        def build() -> None:
            state.enter()
            with strategy.scope():
                compute_output_spec(lambda: _call(layer, specs))

        run_in_thread(build)

    tf.distribute.get_replica_context().merge_call(build_once)


def _call(layer: Any, specs: Any) -> Any:
    args, kwargs = tf.nest.map_structure(placeholder, specs)
    return layer(*args, **kwargs)


def _spec(value: Any) -> Any:
    """The spec of a tensor, for any number of rows; any other argument as it is."""
    if isinstance(value, keras.KerasTensor) or not tf.is_tensor(value):
        return value
    return tf.type_spec_from_value(value)


def placeholder(spec: Any) -> Any:
    """What takes the place of tensors of this spec, with any number of rows; what is no spec as it is."""
    if not isinstance(spec, tf.TypeSpec):
        return spec
    parts = [
        tf.compat.v1.placeholder(part.dtype, _any_rows(part.shape))
        for part in tf.nest.flatten(spec, expand_composites=True)
    ]
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)


def _any_rows(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None, *shape[1:]]) if shape.rank else shape
