"""Graphs, the functions that hold them, and their operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import config

_CALLS = ("While", "If", "PartitionedCall")  # what they call may do more than compute


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


def scratch_graph() -> contextlib.AbstractContextManager[Any]:
    """A graph that is thrown away: for reading structure from code that creates operations."""
    return tf.__internal__.FuncGraph("scratch").as_default()


@contextlib.contextmanager
def effects() -> Iterator[list[tf.Operation]]:
    """A list that holds, when the block has ended, the operations that were made in it and do more than compute.

    For `tf.control_dependencies`: TensorFlow orders by itself only what touches the same variable or iterator. Eagerly
    everything is in order, and the list stays empty.
    """
    made: list[tf.Operation] = []
    if tf.executing_eagerly():
        yield made
        return
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield made
    made.extend(op for op in graph.get_operations()[before:] if op.op_def.is_stateful or op.type in _CALLS)


def operations_are_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism()` was called."""
    return bool(config.is_op_determinism_enabled())
