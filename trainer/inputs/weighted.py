"""Class weights for sources whose batches are read by number."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from .readers import weighted_reader
from .source import Chunk, Source


class ClassWeighted:
    """A source whose batches carry the weights of their classes as `sample_weight`. Owns nothing of its own."""

    def __init__(self, source: Source, weights: tuple[tuple[int, ...], tuple[float, ...]]) -> None:
        """Wraps `source`, whose batches are `(x, y)` with one tensor as `y`.

        Args:
            source: the batches without weights; its chunks are not open-ended.
            weights: classes and their weights.
        """
        self._source = source
        self._weights = weights
        rank = source.spec[1].shape.rank
        unknown: Any = None
        shape = tf.TensorShape(unknown) if rank is None else tf.TensorShape([None] * max(1, rank - 1))
        self.spec = (*source.spec[:2], tf.TensorSpec(shape, keras.config.floatx()))

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk of the wrapped source, with a reader that adds the weights."""
        chunk = self._source.take(max_steps)
        if chunk is None:
            return None
        return dataclasses.replace(chunk, reader=weighted_reader(chunk.reader, *self._weights))

    @property
    def steps_per_epoch(self) -> int | None:
        """Those of the wrapped source."""
        return self._source.steps_per_epoch

    @property
    def batch_rows(self) -> int | None:
        """Those of the wrapped source."""
        return self._source.batch_rows

    @property
    def per_worker(self) -> bool:
        """As the wrapped source."""
        return self._source.per_worker

    @property
    def resume_by(self) -> str:
        """As the wrapped source."""
        return self._source.resume_by

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch of the wrapped source."""
        self._source.begin_epoch(epoch)

    def drawn(self, steps: int) -> None:
        """Tells the wrapped source."""
        self._source.drawn(steps)

    def state(self) -> dict[str, Any]:
        """The position of the wrapped source."""
        return self._source.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Sets the position of the wrapped source."""
        self._source.restore(state)

    def close(self) -> None:
        """Closes the wrapped source."""
        self._source.close()
