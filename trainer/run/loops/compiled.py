"""The compiled form of loops over steps: a function that is called with a chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import graph_function
from ...inputs.sources.source import Chunk

GRAPH, XLA = "graph", "xla"  # the backends


class Compiled(NamedTuple):
    """The function for one layout of input: `function(*arguments(chunk))`.

    It returns (the number of steps that ran, the logs of the last). `graphs` are its `tf.function`s: first that of full
    batches.
    """

    function: Callable[..., Any]
    arguments: Callable[[Chunk], tuple[Any, ...]]
    graphs: tuple[Any, ...] = ()


def inputs_and_steps(chunk: Chunk) -> tuple[Any, int]:
    """The arguments of functions in Python."""
    return chunk.inputs, chunk.steps


def signed(body: Callable[..., Any], signature: Any, first: bool = False, **options: Any) -> Compiled:
    """`body(inputs, steps)`, compiled for inputs of `signature`, with `options` of `tf.function`; None: for any inputs.

    With `first` it is `body(inputs, steps, first)`, which begins with batch `first`, by default 0. A part of a batch may be
    None (the targets of an output without a loss). The signature of a `tf.function` supports no None, so the function is
    then called with the other leaves.
    """
    absent, numbers = has_absent(signature), (0,) if first else ()

    def arguments(chunk: Chunk) -> tuple[Any, ...]:
        inputs = present(chunk.inputs) if absent else chunk.inputs
        return inputs, *(tf.constant(number, tf.int32) for number in (chunk.steps, *numbers))

    if signature is None:
        options["reduce_retracing"] = True
    else:
        if absent:
            body, signature = taking_present(body, signature), present(signature)
        options["input_signature"] = [signature, *[tf.TensorSpec([], tf.int32)] * (1 + len(numbers))]
    function = graph_function(body, **options)
    return Compiled(function, arguments, (function,))


def taking_present(body: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """`body(inputs, *others)`, to be called with a list of the inputs that are not None."""

    def on_present(leaves: list[Any], *others: Any) -> Any:
        rest = iter(leaves)
        whole = [None if leaf is None else next(rest) for leaf in tf.nest.flatten(signature)]
        return body(tf.nest.pack_sequence_as(signature, whole), *others)

    return on_present


def has_absent(signature: Any) -> bool:
    """Whether a leaf of the nest is None; a signature that is None itself has no leaves."""
    return signature is not None and any(leaf is None for leaf in tf.nest.flatten(signature))


def present(nest: Any) -> list[Any]:
    """The leaves of a nest that are not None."""
    return [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]
