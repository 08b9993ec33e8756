"""What this package touches of TensorFlow without its promise; tests: `test_callback_internals.py`."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops


def eager_seed_source() -> random.Random | None:
    """The generator of the seeds of eager random operations; None before a first use."""
    return getattr(context.context(), "_rng", None)


def global_generator() -> tf.random.Generator | None:
    """`tf.random.get_global_generator()` if there is one already; None otherwise (asking would make one)."""
    return stateful_random_ops.global_generator


def sums_on_read(value: Any) -> bool:
    """Whether the copies of a distributed variable are parts of a sum."""
    aggregation = getattr(value, "aggregation", None)
    return is_read_together(value) and aggregation == tf.VariableAggregation.SUM


def is_read_together(value: Any) -> bool:
    """Whether each replica writes its own copy of a variable, put together only when it is read."""
    return getattr(value, "synchronization", None) == tf.VariableSynchronization.ON_READ
