"""The input of asynchronous training: chunks of an epoch that any worker can compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ..inputs import Chunk
from ..inputs.batch import batch_spec, concat_samples, is_scalar, sample_count, sample_counts
from ..inputs.sources.feed import Group

HOST = "/job:chief/replica:0/task:0/device:CPU:0"
"""The coordinator."""


class Piece(NamedTuple):
    """A chunk of `pieces_of` that is scheduled."""

    chunk: Chunk
    steps: int
    number: int
    line: int
    """Its line in the ledger."""


def pieces_of(chunk: Chunk, drawn: Callable[[int], None] | None = None) -> list[Chunk]:
    """The chunk as chunks of `(arrays, place)`; batches of one size are one of them.

    The coordinator reads the input in its order, as on a single device, also a function of
    `tf.distribute.InputContext`. So an epoch has every sample once, and a single worker sees the batches of a
    single-device `fit` in their order. Context: host.

    Args:
        chunk: from a source.
        drawn: called with the number of its batches if the data ended before all of them. None: its length is known.
    """
    if _names_samples(chunk):
        return [chunk]
    batches: list[Any] = []
    for i in range(chunk.steps):
        batch = chunk.batch(i)
        if batch is None:
            assert drawn is not None
            drawn(len(batches))
            break
        batches.append(batch)
    if any(map(is_scalar, tf.nest.flatten(batches))):  # a value of one whole batch
        return [_together([batch], int(sample_count(batch))) for batch in batches]
    if any(len(set(map(int, sample_counts(batch)))) > 1 for batch in batches):
        return [_together([batch], None) for batch in batches]
    of_one_size = itertools.groupby(batches, lambda batch: int(sample_count(batch)))
    return [_together(list(group), samples) for samples, group in of_one_size]


def _names_samples(chunk: Chunk) -> bool:
    """Whether the chunk's inputs are resident arrays and the numbers of some of their samples."""
    if chunk.open_ended or chunk.signature is None:
        return False
    inputs = chunk.inputs
    return isinstance(inputs, tuple) and len(inputs) == 2 and tf.is_tensor(inputs[1])


def _together(batches: list[Any], samples: int | None) -> Chunk:
    """Batches of `samples` samples as one chunk. None: one batch whose arrays have different numbers of samples."""
    arrays, count = concat_samples(batches), len(batches)
    group = Group(arrays, np.arange(count + 1) * (samples or 0), samples, whole=samples is None)
    return group.part(0, count, batch_spec(arrays))
