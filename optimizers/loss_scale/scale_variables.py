"""The variables of a `LossScaleOptimizer`: created, moved, read, written, and laid out as Keras saves them."""

import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.keras_private.optimizers import scope_of
from ...distribute.replicas import local_copy
from ..building import move_to_strategy, run_in_thread
from ..stages.call_options import notes_of_trace
from .scale_rule import ScaleState

_lock = threading.RLock()


def create(optimizer: Any) -> None:
    """Create the variables that do not exist yet, in the order of `variables`; all are scalars.

    | variable | dtype | |
    |---|---|---|
    | `step_counter` | int64 | finite steps since the scale last moved (Keras' name) |
    | `dynamic_scale` | float32 | the scale (Keras' name) |
    | `skipped_steps` | int64 | steps skipped since the start |
    | `skipped_in_a_row` | int64 | steps skipped since the last finite one |
    | `overflowed` | int64 | 1 if a call of the current accumulated update has overflowed |

    Context: where variables can be created.
    """
    counts = ("step_counter", "dynamic_scale", "skipped_steps", "skipped_in_a_row", "overflowed")
    with scope_of(optimizer):
        for name in counts:
            if name not in vars(optimizer):
                start: Any = ("zeros", "int")
                if name == "dynamic_scale":
                    start = (keras.initializers.Constant(optimizer.initial_scale), "float32")
                setattr(optimizer, name, optimizer.add_variable((), *start, aggregation="none", name=name))


def move_to_current_strategy(optimizer: Any) -> None:
    """Move outside variables into the scope, in another thread, as `scale_loss` may be traced in replica context."""
    strategy = tf.distribute.get_strategy()
    if optimizer.built or not tf.distribute.has_strategy():
        return
    if strategy.extended.variable_created_in_scope(optimizer.dynamic_scale.value):
        return

    def move() -> None:
        with _lock, strategy.scope():
            move_to_strategy(optimizer, strategy)

    run_in_thread(move)


def note(optimizer: Any, scale: tf.Tensor) -> None:
    """Note a loss's scale for the step or the traced function: the variable may move before the gradients come."""
    if (notes := notes_of_trace()) is not None:
        notes[_key(optimizer)] = scale


def find_noted_scale(optimizer: Any) -> tf.Tensor | None:
    """Return the scale by which the loss was last multiplied; None if that is not known in the current graph."""
    scale = (notes_of_trace() or {}).get(_key(optimizer))
    known = tf.executing_eagerly() or getattr(scale, "graph", None) is tf.compat.v1.get_default_graph()
    return scale if known else None


def _key(optimizer: Any) -> tuple[Any, ...]:
    return "loss scale", id(optimizer), id(tf.compat.v1.get_default_graph())


def read(optimizer: Any) -> ScaleState:
    """Return this replica's copy of the state. Context: replica."""
    return ScaleState(*(tf.convert_to_tensor(local_copy(v)) for v in _state(optimizer)))


def write(optimizer: Any, state: ScaleState, where: Any = None) -> None:
    """Write this replica's copies if `where`, a bool scalar, is true or None. Context: replica."""
    for variable, value in zip(_state(optimizer), state):
        copy = local_copy(variable)
        copy.assign(value if where is None else tf.where(where, value, copy))


def _state(optimizer: Any) -> tuple[Any, Any, Any, Any]:
    return (
        optimizer.dynamic_scale,
        optimizer.step_counter,
        optimizer.skipped_steps,
        optimizer.skipped_in_a_row,
    )


def to_keras_layout(optimizer: Any) -> list[np.ndarray]:
    """Return Keras' four variables: skipped steps are where it keeps a count and a rate that nothing reads."""
    in_a_row = float(optimizer.skipped_in_a_row.numpy()) + float(optimizer.overflowed.numpy()) / 2
    return [
        np.asarray(optimizer.skipped_steps.numpy(), np.int64),
        np.asarray(in_a_row, np.float32),
        np.asarray(optimizer.step_counter.numpy()),
        np.asarray(optimizer.dynamic_scale.numpy()),
    ]


def from_keras_layout(optimizer: Any, values: list[Any]) -> None:
    """Reverse `to_keras_layout`. Context: host."""
    skipped, in_a_row, step_counter, scale = (np.asarray(value) for value in values)
    optimizer.skipped_steps.assign(int(skipped))
    optimizer.skipped_in_a_row.assign(int(in_a_row))
    optimizer.overflowed.assign(int(float(in_a_row) % 1 > 0))
    optimizer.step_counter.assign(int(step_counter))
    optimizer.dynamic_scale.assign(float(scale))
