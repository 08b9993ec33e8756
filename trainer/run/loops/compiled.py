"""The compiled form of loops over steps: a function that is called with a chunk."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import graph_function
from ...inputs.sources.source import Chunk

GRAPH, XLA = "graph", "xla"  # the backends


class Compiled(NamedTuple):
    """`function(*arguments(chunk))` is (the steps that ran, the last logs); the first of `graphs` takes full batches."""

    function: Callable[..., Any]
    arguments: Callable[[Chunk], tuple[Any, ...]]
    graphs: tuple[Any, ...] = ()


def inputs_and_steps(chunk: Chunk) -> tuple[Any, int]:
    """Return the arguments of functions in Python."""
    return chunk.inputs, chunk.steps


def compile_for(body: Callable[..., Any], signature: Any, first: bool = False, **options: Any) -> Compiled:
    """Compile `body(inputs, steps)` for inputs of `signature` (None: any), with `options` of `tf.function`.

    With `first` it is `body(inputs, steps, first)`, which begins with batch `first`, by default 0.
    """
    numbers = (0,) if first else ()

    def arguments(chunk: Chunk) -> tuple[Any, ...]:
        return chunk.inputs, *(tf.constant(number, tf.int32) for number in (chunk.steps, *numbers))

    if signature is None:
        options["reduce_retracing"] = True
    else:
        counts = [tf.TensorSpec([], tf.int32)] * (1 + len(numbers))
        # Of a part that is None (the targets of an output without a loss).
        none = tf.type_spec_from_value(None)
        given = tf.nest.map_structure(lambda leaf: none if leaf is None else leaf, signature)
        options["input_signature"] = [given, *counts]
    function = graph_function(body, **options)
    return Compiled(function, arguments, (function,))
