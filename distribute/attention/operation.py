"""The operation: its kinds, its axes, its gradient."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.gradients import count_inside_as_gradient
from ...compat.tensorflow_graphs.named_calls import call_as_one
from . import blocks

FORWARD, BACKWARD = "Attention", "AttentionGradient"
_QUERIES, _KEYS, _VALUES, _STATISTIC, _RESULT = "aTkgH", "aSkH", "aSkV", "aTkg", "aTkgV"
_OPEN = "akg"
"""The letters of samples and heads, which replicas divide: no function depends on their extents."""


def letters_of(kind: str, ranks_of_ones: Sequence[Sequence[bool]]) -> tuple[list[str], list[str]]:
    """Return a letter for each axis of the inputs, and of the outputs, of an operation; "1" for an axis that is broadcast.

    Samples are a, tokens T (queries) and S (keys), heads of keys k, groups of queries that share one g, extents H and V.
    `ranks_of_ones`: for each axis of each input, whether its extent is 1.
    """
    inputs = [_QUERIES, _KEYS, _VALUES]
    more = [] if kind == FORWARD else [_RESULT, _STATISTIC, _STATISTIC, _RESULT]
    for ones in ranks_of_ones[3 : len(ranks_of_ones) - len(more)]:
        inputs.append("".join("1" if one else letter for letter, one in zip("akgTS", ones)))
    outputs = [_RESULT, _STATISTIC, _STATISTIC] if kind == FORWARD else [_QUERIES, _KEYS, _VALUES]
    return inputs + more, outputs


def attend(q: Any, k: Any, v: Any, mask: Any, causal: bool, plain: Callable[..., Any]) -> tf.Tensor:
    """Return attention, with a gradient of its own; the arguments are those of `blocks.attend`.

    `plain(q, k, v)` computes the same; its gradient is that of the gradient.
    """
    masks = [] if mask is None else [mask]

    @tf.custom_gradient
    def forward(q: Any, k: Any, v: Any) -> Any:
        out, *statistics = _call(FORWARD, blocks.attend, causal, [q, k, v, *masks])

        def gradient(given: Any) -> Any:
            if tf.executing_eagerly():
                return backward(q, k, v, out, *statistics, given)
            with count_inside_as_gradient():
                return backward(q, k, v, out, *statistics, given)

        return out, gradient

    @tf.custom_gradient
    def backward(q: Any, k: Any, v: Any, *others: Any) -> Any:
        found = _call(BACKWARD, blocks.differentiate, causal, [q, k, v, *masks, *others])

        def gradient(*given: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([q, k, v, others[-1]])
                with tf.GradientTape() as inner:
                    inner.watch([q, k, v])
                    out = plain(q, k, v)
                first = inner.gradient(out, [q, k, v], others[-1])
            *second, of_given = tape.gradient(first, [q, k, v, others[-1]], list(given))
            return *second, None, None, None, of_given

        return found, gradient

    return forward(q, k, v)


def _call(kind: str, body: Callable[..., Any], causal: bool, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs, with the static shapes that follow from the letters."""
    ones = [[extent == 1 for extent in tensor.shape] for tensor in inputs]
    terms, made = letters_of(kind, ones)
    known = {letter: n for term, t in zip(terms, inputs) for letter, n in zip(term, t.shape) if n is not None}
    specs = [
        tf.TensorSpec([None if letter in _OPEN else known[letter] for letter in term], tensor.dtype)
        for term, tensor in zip(terms, inputs)
    ]
    found = call_as_one(kind, causal, functools.partial(body, causal), inputs, specs)
    for tensor, term in zip(found, made):
        tensor.set_shape([known.get(letter) for letter in term])
    return found
