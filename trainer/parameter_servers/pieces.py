"""The input of asynchronous training: pieces of an epoch that any worker can compute."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..inputs import Chunk
from ..inputs.batch import batch_spec, concat_samples, is_scalar, sample_count, sample_counts
from ..inputs.sources.readers import ArrayReader, WholeReader

HOST = "/job:chief/replica:0/task:0/device:CPU:0"
"""The coordinator."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some steps, for any worker.

    Attributes:
        steps: int.
        reader: `reader((resident, place), i)` is batch i.
        resident: nest of tensors that stay on a worker while pieces name the same ones.
        place: small tensor that is sent with the piece: the position of its batches in `resident`.
        samples: int or None; samples in each batch.
        signature: nest of `tf.TypeSpec` of the inputs.
        number: int; set when it is scheduled.
        line: int; its line in the ledger.
    """

    steps: int
    reader: Callable[[Any, Any], Any]
    resident: Any
    place: Any
    samples: int | None
    signature: Any
    number: int = 0
    line: int = 0


class WorkerMemory:
    """The input tensors on each worker. Context: host; each worker's thread asks for its own."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Any]] = {}

    def inputs(self, worker: int, piece: Piece) -> Any:
        """The inputs of a piece, on the calling thread's worker."""
        held = self._held.get(worker)
        if held is None or held[0] is not piece.resident:
            with tf.device(f"/job:worker/replica:0/task:{worker}/device:CPU:0"):
                there = tf.nest.map_structure(_sent, piece.resident, expand_composites=True)
            held = self._held[worker] = (piece.resident, there)
        return held[1], piece.place

    def forget(self, worker: int) -> None:
        """Drops the tensors of a lost worker."""
        self._held.pop(worker, None)

    def clear(self) -> None:
        """Frees the memory of all workers."""
        self._held.clear()


def _sent(leaf: Any) -> Any:
    return None if leaf is None else tf.identity(leaf)


def pieces_of(chunk: Chunk, drawn: Callable[[int], None] | None = None) -> list[Piece]:
    """The chunk as self-contained pieces; batches of one size are one piece.

    The coordinator reads the input in its order, as on a single device, also a function of
    `tf.distribute.InputContext`. So an epoch has every sample once, and a single worker sees the batches of a
    single-device `fit` in their order.

    Args:
        chunk: from a source.
        drawn: called with the number of its batches if the data ended before all of them. None: its length is known.

    Context: host.
    """
    if _names_samples(chunk):
        resident, place = chunk.inputs
        return [Piece(chunk.steps, chunk.reader, resident, place, chunk.batch_size, chunk.signature)]
    batches: list[Any] = []
    for i in range(chunk.steps):
        batch = chunk.batch(i)
        if batch is None:
            assert drawn is not None
            drawn(len(batches))
            break
        batches.append(batch)
    if any(map(is_scalar, tf.nest.flatten(batches))):  # a value of one whole batch
        return [_batches_piece([batch], int(sample_count(batch))) for batch in batches]
    if any(len(set(map(int, sample_counts(batch)))) > 1 for batch in batches):
        return list(map(_whole_piece, batches))
    of_one_size = itertools.groupby(batches, lambda batch: int(sample_count(batch)))
    return [_batches_piece(list(group), samples) for samples, group in of_one_size]


def _names_samples(chunk: Chunk) -> bool:
    """Whether the chunk's inputs are resident arrays and the numbers of some of their samples."""
    if chunk.open_ended or chunk.signature is None:
        return False
    inputs = chunk.inputs
    return isinstance(inputs, tuple) and len(inputs) == 2 and tf.is_tensor(inputs[1])


def _whole_piece(batch: Any) -> Piece:
    """A batch whose arrays have different numbers of samples."""
    signature = (batch_spec(batch), tf.TensorSpec([], tf.int64))
    return Piece(1, WholeReader(str(signature)), batch, tf.constant(0, tf.int64), None, signature)


def _batches_piece(batches: list[Any], samples: int) -> Piece:
    together = batches[0] if len(batches) == 1 else concat_samples(batches)
    start = tf.constant(0, tf.int64)
    signature = ([batch_spec(together)], tf.TensorSpec([], tf.int64))
    return Piece(len(batches), ArrayReader(str(signature), samples), [together], start, samples, signature)
