"""A compiled function, and how it is called with a chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from ...compat.graphs import graph_function
from ..inputs.source import Chunk

GRAPH, XLA = "graph", "xla"  # the ways of running steps


def inputs_and_steps(chunk: Chunk) -> tuple[Any, tf.Tensor]:
    """The arguments of most functions: the inputs, and the number of steps as an int32 scalar tensor."""
    return chunk.inputs, tf.constant(chunk.steps, tf.int32)


def present_inputs_and_steps(chunk: Chunk) -> tuple[list[Any], tf.Tensor]:
    """The same with a list of the inputs that are there."""
    return _present(chunk.inputs), tf.constant(chunk.steps, tf.int32)


class Compiled(NamedTuple):
    """What runs the steps of one layout of input.

    Attributes:
        function: returns (the steps that were run, the logs or outputs of the last).
        arguments: chunk -> the arguments of `function`.
    """

    function: Callable[..., Any]
    arguments: Callable[[Chunk], tuple[Any, Any]] = inputs_and_steps


def signed(body: Callable[..., Any], signature: Any, **options: Any) -> Compiled:
    """`body(inputs, steps)`, compiled for inputs of `signature`; None: for whatever comes.

    A part of a batch may be None (the targets of an output without a loss). The signature of a `tf.function` has no None,
    so the function is then called with the leaves that are there.
    """
    if signature is None:
        return Compiled(graph_function(body, reduce_retracing=True))
    if not has_absent(signature):
        return Compiled(graph_function(body, input_signature=_with_steps(signature), **options))

    def on_present(leaves: list[Any], steps: tf.Tensor) -> Any:
        rest = iter(leaves)
        whole = [None if leaf is None else next(rest) for leaf in tf.nest.flatten(signature)]
        return body(tf.nest.pack_sequence_as(signature, whole), steps)

    function = graph_function(on_present, input_signature=_with_steps(_present(signature)), **options)
    return Compiled(function, present_inputs_and_steps)


def has_absent(signature: Any) -> bool:
    """Whether a leaf of the nest is None; a signature that is None itself has no leaves."""
    return signature is not None and any(leaf is None for leaf in tf.nest.flatten(signature))


def _present(nest: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]


def _with_steps(signature: Any) -> list[Any]:
    return [signature, tf.TensorSpec([], tf.int32)]
