"""Everything private of TensorFlow that the trainer touches; `tests/unit/test_tensorflow_internals.py` watches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def graph_function(fn: Callable[..., Any], **kwargs: Any) -> Any:
    """`tf.function` of a function of ours: no conversion of its Python code, and no warning for each new model.

    TensorFlow counts the traces of all functions made by one line of code together, so the tenth model of a program
    would be warned about although none is traced twice.
    """
    function = tf.function(fn, autograph=False, **kwargs)
    function._omit_frequent_tracing_warning = True
    return function


def first_graph(function: Any) -> Any:
    """The graph of the first trace of a `tf.function`; None before it, and for anything else."""
    if getattr(function, "_variable_creation_config", None) is None:
        return None
    return function._concrete_variable_creation_fn.graph
