"""Builds what a traced step uses before it was built: once, where variables can be created."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import arguments_of
from ...compat.keras_private.seed_generators import thread_state
from ...compat.upstream_places import compute_output_spec
from ...optimizers.building import run_in_thread
from ..inputs.batch import of_size, open_spec


def build_outside(layer: Any, call_spec: Any, strategy: tf.distribute.Strategy) -> None:
    """Build `layer` for a call, outside the traced step."""
    specs = tf.nest.map_structure(_spec, arguments_of(layer, call_spec))

    def call() -> Any:
        args, kwargs = tf.nest.map_structure(placeholder, specs)
        return layer(*args, **kwargs)

    run_outside(lambda: compute_output_spec(call), strategy)


def run_outside(fn: Callable[[], Any], strategy: tf.distribute.Strategy) -> Any:
    """Run `fn()` in another thread, as in a traced step the initial values of variables would belong to the graph."""
    state = thread_state()

    def run() -> Any:
        state.enter()
        with strategy.scope():
            return fn()

    return run_in_thread(run)


def _spec(value: Any) -> Any:
    """Return the spec of a tensor, for any number of samples; any other argument unchanged."""
    return value if isinstance(value, keras.KerasTensor) or not tf.is_tensor(value) else open_spec(value)


def placeholder(spec: Any, samples: int | None = None) -> Any:
    """Return a stand-in for dense tensors of this spec with this number of samples, other arguments unchanged."""
    if not isinstance(spec, tf.TypeSpec):
        return spec
    spec = of_size(spec, samples)
    components = tf.nest.flatten(spec, expand_composites=True)
    parts = [tf.compat.v1.placeholder(part.dtype, part.shape) for part in components]
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)
