"""The rules by which replicas join what user code returns are found on the first batches, before their steps are run."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...distribute.join_rules import JoinRules
from ...distribute.workers.agreement import gather_json
from ..inputs.source import Chunk, spec_of_batches
from ..step.find_rules import RuleFinder

_MOST_BATCHES = 200  # that are looked at one by one

_log = logging.getLogger("unisono")


class RulesFirst:
    """Gives steps their rules. Owns the search for them, which ends at the first batch that shows them all.

    Args:
        model: the model.
        name: of the step: "train_step", "test_step" or "predict_step".

    Attributes:
        rules: what was found so far.
        plan: of the fit, which backups hold: "rules" are the answers so far, with which a resumed run goes on.
    """

    def __init__(self, model: TrainedModel, name: str) -> None:
        self.rules = JoinRules()
        self.plan: dict[str, Any] = {}
        self._answers: dict[str, Any] = {}
        several = model.distribute_strategy.num_replicas_in_sync > 1 or model._pipeline is not None
        finder = RuleFinder(model, name) if several else None
        self._finder = finder if finder is not None and finder.needed else None
        self._strategy = model.distribute_strategy
        self._traced, self._looked = False, 0

    def parts_of(self, chunk: Chunk) -> Iterator[Chunk]:
        """The chunk, or its batches one by one as long as their rules have to be found.

        `rules` are those of each part when it comes. A batch that was drawn from an iterator to be looked at is a part of
        its own.
        """
        if self._finder is not None and not self._traced and chunk.steps:
            self._traced = True
            if not self._finder.anything_to_join(spec_of_batches(chunk)):
                self._finder = None
            else:
                self._take(self.plan.get("rules", {}))
        draws, step = hasattr(chunk.inputs, "get_next"), 0
        while self._finder is not None and step < chunk.steps:
            drawn = chunk.reader(chunk.inputs, tf.constant(step))
            self._look_at(_value(chunk, drawn))
            if self._finder is None and not draws and step == 0:
                break
            yield _held(chunk, drawn)
            step += 1
        if step == 0:
            yield chunk
        elif draws and step < chunk.steps:
            yield dataclasses.replace(chunk, steps=chunk.steps - step)
        elif not draws:
            for later in range(step, chunk.steps):
                yield _held(chunk, chunk.reader(chunk.inputs, tf.constant(later)))

    def parts_with_rules(self, chunk: Chunk, forget: Callable[[], None]) -> Iterator[Chunk]:
        """`parts_of`; `forget` is called before a part whose rules are others than before: graphs that have them are old."""
        before = self.rules
        for part in self.parts_of(chunk):
            if self.rules != before:
                forget()
                before = self.rules
            yield part

    def note(self, plan: dict[str, Any]) -> None:
        """Writes what an earlier fit of this process has found into the plan of the one that runs."""
        if plan is not self.plan and self._answers:
            plan.setdefault("rules", self._answers)
        self.plan = plan

    def _take(self, saved: Any) -> None:
        """Goes on with the answers of the run that is resumed."""
        finder = self._finder
        assert finder is not None
        names = finder.answers.names
        if not isinstance(saved, dict) or saved.keys() != set(names):
            return
        finder.answers.adopt([[saved[name] for name in names]])
        self.rules, self._answers = finder.rules(), saved
        if not finder.answers.not_shown():
            self._finder = None

    def _look_at(self, batch: Any) -> None:
        """Finds what a batch shows, the same on every worker. None: the data of this one has ended."""
        finder = self._finder
        assert finder is not None
        if batch is not None:
            finder.look(batch)
        everyone = gather_json([batch is None, finder.answers.values], self._strategy)
        finder.answers.adopt([values for _, values in everyone])
        self.rules, self._looked = finder.rules(), self._looked + 1
        self._answers = self.plan["rules"] = dict(zip(finder.answers.names, finder.answers.values))
        if finder.answers.taken_for_means and self._looked == _MOST_BATCHES:
            _log.warning(
                "These numbers of user code were zero on all rows of %d batches, so that it cannot be told whether each is "
                "a mean over rows or a sum: %s. They are taken for means.",
                _MOST_BATCHES,
                ", ".join(finder.answers.taken_for_means),
            )
        ended = any(over for over, _ in everyone)
        if not finder.answers.not_shown() or ended or self._looked == _MOST_BATCHES:
            self._finder = None


def _value(chunk: Chunk, drawn: Any) -> Any:
    """The batch that the chunk's reader gave; None where the data has ended."""
    if not chunk.open_ended:
        return drawn
    return drawn.get_value() if bool(drawn.has_value()) else None


def _held(chunk: Chunk, drawn: Any) -> Chunk:
    """A chunk of this one batch."""
    return Chunk(drawn, 1, chunk.rows, _as_it_is, chunk.open_ended, per_worker=chunk.per_worker)


def _as_it_is(inputs: Any, i: Any) -> Any:
    return inputs
