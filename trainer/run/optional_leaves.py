"""Parts of a batch that are not there (the targets of an output without a loss): a `tf.function`'s signature has no None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def has_absent(signature: Any) -> bool:
    """Whether a leaf of the nest is None; a signature that is None itself has no leaves."""
    return signature is not None and any(leaf is None for leaf in tf.nest.flatten(signature))


def present(nest: Any) -> list[Any]:
    """The leaves that are not None, in order."""
    return [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]


def on_present(body: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """`body(inputs, steps)` as a function of the present leaves of `inputs` and the steps."""

    def run(leaves: list[Any], steps: tf.Tensor) -> Any:
        rest = iter(leaves)
        whole = [None if leaf is None else next(rest) for leaf in tf.nest.flatten(signature)]
        return body(tf.nest.pack_sequence_as(signature, whole), steps)

    return run
