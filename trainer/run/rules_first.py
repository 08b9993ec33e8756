"""The rules by which replicas join what user code returns are found on the first batches, before their steps are run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.graphs import graph_function
from ...distribute.join_rules import JoinRules
from ..inputs.rows import batch_spec
from ..inputs.source import Chunk
from ..step.find_rules import RuleFinder


class RulesFirst:
    """Gives steps their rules. Owns the search for them, which ends at the first batch that shows them all.

    Args:
        model: the model.
        training: whether of its training steps.

    Attributes:
        rules: what was found so far.
    """

    def __init__(self, model: TrainedModel, training: bool) -> None:
        self.rules = JoinRules()
        several = model.distribute_strategy.num_replicas_in_sync > 1 or model._pipeline is not None
        finder = RuleFinder(model, training) if several else None
        self._finder = finder if finder is not None and finder.needed else None
        self._traced = False

    def parts_of(self, chunk: Chunk) -> Iterator[Chunk]:
        """The chunk, or its batches one by one as long as their rules have to be found.

        `rules` are those of each part when it comes. A batch that was drawn from an iterator to be looked at is a part of
        its own.
        """
        if self._finder is not None and not self._traced and chunk.steps:
            self._traced = True
            if not self._finder.anything_to_join(_spec_of(chunk)):
                self._finder = None
        draws, step = hasattr(chunk.inputs, "get_next"), 0
        while self._finder is not None and step < chunk.steps:
            batch = _batch(chunk, step)
            if batch is None:
                break
            self.rules = self._finder.find(batch)
            if self.rules.known:
                self._finder = None
                if not draws and step == 0:
                    break
            yield _held(chunk, batch)
            step += 1
        if step == 0:
            yield chunk
        elif draws and step < chunk.steps:
            yield dataclasses.replace(chunk, steps=chunk.steps - step)
        elif not draws:
            for later in range(step, chunk.steps):
                yield _held(chunk, _batch(chunk, later))


def _spec_of(chunk: Chunk) -> Any:
    """The nest of `tf.TypeSpec` of the chunk's batches; nothing is drawn from an iterator."""

    def read(inputs: Any) -> Any:
        batch = chunk.reader(inputs, tf.constant(0))
        return batch.get_value() if chunk.open_ended else batch

    inputs = chunk.inputs if chunk.signature is None else chunk.signature
    return batch_spec(graph_function(read).get_concrete_function(inputs).structured_outputs)


def _batch(chunk: Chunk, step: int) -> Any:
    """Batch `step` of the chunk; None where the data has ended."""
    batch = chunk.reader(chunk.inputs, tf.constant(step))
    if not chunk.open_ended:
        return batch
    return batch.get_value() if bool(batch.has_value()) else None


def _held(chunk: Chunk, batch: Any) -> Chunk:
    """A chunk of this one batch."""
    reader = _held_optional if chunk.open_ended else _held_batch
    return Chunk(batch, 1, chunk.rows, reader, chunk.open_ended, per_worker=chunk.per_worker)


def _held_batch(inputs: Any, i: Any) -> Any:
    return inputs


def _held_optional(inputs: Any, i: Any) -> Any:
    return tf.experimental.Optional.from_value(inputs)
