"""What the replicas join before a step is done with it, chosen from what a batch shows: the answers to `EARLIER`.

The ways themselves are in `earlier_joins.py`; state is joined where it is written, before anything else is tried.

Context: host.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ...callbacks.trained_model import TrainedModel
from ...distribute.join_rules import ACROSS_ROWS, FIRST, MEAN, SAME, SUM, JoinRules, WriteRule, declared
from .earlier_joins import Parts, find_way, joinable_parts, known_parts, rule_of_part
from .looks import Looks
from .observed_step import ObservedStep
from .rule_answers import EARLIER, JOINED, NUMBERS, Answers, Key, Names, rules_of_way, way_of
from .shown_batch import ShownBatch

_log = logging.getLogger("unisono")


class EarlierRules:
    """Chooses what is joined earlier, and has the traces that are looked at do so. Writes what it finds into the answers.

    Args:
        model: the model.
        make: makes a trace; see `Looks`.
        tolerance: see `Looks`.
        names: of what is asked for.
        answers: so far.
        looks: the traces of the step as it is.

    Attributes:
        looks: the traces of the step that joins as the answers say.
    """

    def __init__(
        self,
        model: TrainedModel,
        make: Callable[..., ObservedStep],
        tolerance: float,
        names: Names,
        answers: Answers,
        looks: Looks,
    ) -> None:
        self._model, self._make, self._tolerance = model, make, tolerance
        self._names, self._answers, self.looks = names, answers, looks
        self._traced: Any = None  # the answer as which `looks` join

    def join(self, shown: ShownBatch) -> ShownBatch:
        """Joins numbers earlier, if that is what it takes; returns what is shown then."""
        if self._answers[EARLIER] is not None:
            shown = self._parts_shown(shown)
            if not self._joins_writes_alone:
                return shown
        if self._answers.on_one:
            return shown
        shown = self._writes_joined(shown)
        joined = [noted for noted in self._names.noted.values() if noted[0] in JOINED]
        numbers = [
            key for key in joined if key[0] != "fed" or shown.seen.rule_of_fed(key[1]) is None
        ]  # rows are none
        gradients = [key for key in numbers if key[0] == "gradients"]
        if not numbers:
            return shown
        if gradients and not any(map(shown.seen.rule, gradients)) and not self.looks.whole.bent:
            return shown
        added = {noted[1:]: shown.seen.rule(noted) or MEAN for noted in numbers if noted[0] == "added"}
        # A gradient is taken of what they are turned into.
        if gradients and set(added.values()) - {MEAN, ACROSS_ROWS}:
            self.looks = self._looks_that_join(rules=JoinRules(added=added))
            shown = ShownBatch(self.looks, shown.case, self.looks.seen(*shown.case, one=shown.seen.one))
        cases, in_graph = [(shown.case, shown.seen), *shown.thin], not self._model.run_eagerly
        way = find_way(self.looks, self._looks_that_join, cases, numbers, added, in_graph)
        if way is None:
            return shown
        self.looks = way.looks
        # What earlier batches have shown is of numbers that were not joined so; gradients that are may be written, too.
        self._answers.forget(*NUMBERS, "write")
        self._note_way(way.tapes, {**self._parts_of_writes(), **way.parts})
        if way.tapes:
            for key in filter(way.seen.is_same, gradients):
                self._answers[key] = SAME
        return ShownBatch(self.looks, shown.case, way.seen)

    def _looks_that_join(self, at_tape: bool = False, rules: JoinRules | None = None) -> Looks:
        """Traces that join at tapes and parts as said, and what is written as was found."""
        rules = rules or JoinRules()
        parts = {**known_parts(self._parts_of_writes()), **rules.parts}
        return Looks(self._make, self._tolerance, at_tape, dataclasses.replace(rules, parts=parts))

    def _note_way(self, tapes: Sequence[str | None], parts: Parts) -> None:
        """Answers what is joined earlier."""
        names = {noted: key for key, noted in self._names.noted.items()}
        named = [[list(names.get(noted, noted)), list(rules)] for noted, rules in parts.items()]
        self._answers[EARLIER] = self._traced = [list(tapes), named]
        for noted in parts:
            if noted[0] == "write":  # every replica has the same
                self._answers[names[noted]] = WriteRule(FIRST)

    def _parts_of_writes(self) -> dict[Key, Sequence[str | None]]:
        """The rules of the parts of what is written to states, as far as these are joined so, by the traces' names."""
        _, parts = self._answers[EARLIER] or ((), ())
        return {self._names.noted[tuple(key)]: rules for key, rules in parts if key[0] == "write"}

    @property
    def _joins_writes_alone(self) -> bool:
        tapes, parts = self._answers[EARLIER]
        return bool(parts) and not tapes and all(key[0] == "write" for key, _ in parts)

    def _writes_joined(self, shown: ShownBatch) -> ShownBatch:
        """Joins states where they are written, if no rule joins them at the end of the step; first those that others use."""
        all_wanted = set(self._writes_without_rule(shown))
        wanted = [
            key for key in self.looks.whole.noted if key in all_wanted - self._built_on_some(all_wanted)
        ]
        if not wanted:
            return shown
        cases = [(shown.case, shown.seen), *shown.thin]
        found = joinable_parts(self.looks, [seen for _, seen in cases], wanted)
        while found:
            try:
                looks = self._looks_that_join(rules=JoinRules(parts=known_parts(found)))
                seen = [looks.seen(*case, one=each.one) for case, each in cases]
            except Exception as error:
                _log.info("What a step writes could not be joined where it is written: %r", error)
                return shown
            wrong = [key for key in found if not all(each.is_same(key) for each in seen)]
            if not wrong:
                self.looks = looks
                self._answers.forget(*NUMBERS)
                self._note_way((), {**self._parts_of_writes(), **found})
                return self._writes_joined(ShownBatch(looks, shown.case, seen[0]))
            found = {key: rules for key, rules in found.items() if key not in wrong}
        return shown

    def _built_on_some(self, writes: set[Key]) -> set[Key]:
        """Those of the writes that are computed of others of them."""
        return {key for key in writes if self.looks.whole.built_on.get(key, set()) & writes}

    def _writes_without_rule(self, shown: ShownBatch) -> list[Key]:
        """The states that no rule joins, or only while rows are alike, or too late, as the traces call them.

        What is declared is joined as it says. Too late is the end of the step for what is read again before.
        """
        # The micro-batches of a pipeline come one after the other; eager tensors do not know what they are made of.
        if self._model._pipeline is not None or self._model.run_eagerly or self.looks.whole.random:
            return []
        found = shown.write_rules(self._names.waiting(self.looks.whole.writes, self._answers))
        result = []
        for _, variable, place in self._names.written(self.looks.whole.writes):
            noted, rule = self._names.noted["write", place], found.get(place, WriteRule(MEAN))
            if self._answers["write", place] is not None or declared(variable) is not None:
                continue
            bent = noted in self.looks.whole.bent_writes and rule is not None and rule.kind in (MEAN, SUM)
            if noted in self.looks.whole.noted and (
                rule is None or bent or noted in self.looks.whole.read_back
            ):
                result.append(noted)
        return result

    def join_as_found(self) -> None:
        """Lets the traces that are looked at join numbers where another worker, or the run that is resumed, has found."""
        answer = self._answers[EARLIER]
        if answer == self._traced:
            return
        tapes, parts = way_of(answer, self._names.noted)
        rules = self._answers.of_kind("added").items()
        added = {self._names.noted[key][1:]: rule for key, rule in rules if isinstance(rule, str)}
        self.looks = Looks(
            self._make, self._tolerance, at_tape=bool(tapes), rules=JoinRules(parts=parts, added=added)
        )
        self._traced = answer

    def _parts_shown(self, shown: ShownBatch) -> ShownBatch:
        """Finds the rules of tapes and parts that were zero on all rows so far."""
        looks, seen = self.looks, shown.seen
        tapes, parts = self._answers[EARLIER]
        tapes = [rule or seen.rule(("tape", number)) for number, rule in enumerate(tapes)]

        def of(key: Any) -> Any:
            return self._names.noted.get(tuple(key), tuple(key))

        parts = [
            [key, [rule or rule_of_part(("part", *of(key), n), looks, seen) for n, rule in enumerate(rules)]]
            for key, rules in parts
        ]
        if [tapes, parts] == self._answers[EARLIER]:
            return shown
        self._answers[EARLIER] = [tapes, parts]
        if ACROSS_ROWS in rules_of_way([tapes, parts]):  # they could be joined as long as they were zero
            self._answers[EARLIER] = [[], []]
            self._answers.forget(*NUMBERS, "write")
        self.join_as_found()
        return ShownBatch(self.looks, shown.case)
