r"""How the numbers that user code hands back are joined: found out from real rows, without a trace in the state.

What the step hands back on a few real rows is compared with what it hands back on parts of them (`compared_parts.py`).

Context: host.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import is_own, layers_of
from ...compat.replaced import replaced_functions
from ...distribute.join_rules import (
    ACROSS_ROWS,
    FIRST,
    MEAN,
    MEAN_PER_REPLICA,
    ON_ONE,
    SAME,
    SUM,
    JoinRules,
    WriteRule,
    declared,
)
from ...distribute.sharding.value import read_together
from ..inputs.row_units import slice_units, unit_count
from ..inputs.rows import concat_rows
from . import rule_words as words
from .compared_parts import Seen, rule_of
from .earlier_joins import Parts, find_way, joinable_parts, known_parts, rule_of_part
from .looks import Looks
from .observed_step import ObservedStep, looked_at
from .own_states import losses_hold_state, other_states, schedules, states_of_layers
from .rule_answers import (
    ALL_ROWS,
    EARLIER,
    JOINED,
    NUMBERS,
    Answers,
    Key,
    is_on_one,
    join_rules,
    rules_of_way,
    way_of,
)
from .shown_batch import ShownBatch
from .step_loss import overrides_compute_loss

_MOST_ROWS = 48  # that are computed on
_PARTS = ("whole", "first", "last")
_TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
_HALF_TOLERANCE = 3e-2

# Noted beside the numbers; needs no rule of its own.
_NO_KEYS = ("size", "same", "same log", "tape", "part", "order", "in branch", "write")

_log = logging.getLogger("unisono")


class RuleFinder:
    """Finds the `JoinRules` of the training, evaluation or prediction steps of a model.

    Args:
        model: built.
        name: of the step: "train_step", "test_step" or "predict_step".

    Attributes:
        answers: what was found so far.
    """

    def __init__(self, model: TrainedModel, name: str) -> None:
        self._model, self._name = model, name
        self._own_step = model._overrides_step(name)
        self._own_logs = name != "predict_step" and model._has_own_logs(name == "train_step")
        self._states = states_of_layers(model)
        self._looks: Looks | None = None
        self.answers = Answers()
        self._noted: dict[Key, Any] = {}  # what the traces call each key
        self._layers: list[int] = []
        self._nearest_taken: set[Key] = set()  # of the numbers that no rule joins
        self._traced: Any = None  # the rules of what is joined earlier in the traces that are looked at
        self._may_be_whole = model._pipeline is None  # whose stages hold parts of each batch

    @property
    def _whole(self) -> ObservedStep:
        assert self._looks is not None
        return self._looks.whole

    def _list_keys(self) -> None:
        """Names what has to be found by what is the same on every worker: a number in place of an id."""
        self._layers = [id(layer) for layer in layers_of(self._model)]
        number = {key: place for place, key in enumerate(self._layers)}
        for noted in self._whole.noted:
            if (noted[0] == "loss" and len(noted) > 1) or noted[0] in _NO_KEYS:
                continue
            key = ("added", number[noted[1]], noted[2]) if noted[0] == "added" else noted
            self._noted[key] = noted
        self._noted.update({("write", place): ("write", id(v)) for _, v, place in self._written()})
        self.answers = Answers(self._noted, self._whole.without_rows)

    def _written(self) -> list[tuple[int, Any, int]]:
        """Of each state that the step writes: its number among what is written, its variable, its place."""
        places = {id(v): place for place, v in enumerate(self._states)}
        return [(n, v, places[id(v)]) for n, v in enumerate(self._whole.writes) if id(v) in places]

    @property
    def needed(self) -> bool:
        """Whether there is code of the user's own in the step."""
        if self._own_step or any(is_own(layer) for layer in layers_of(self._model)):
            return True
        if self._name == "predict_step":
            return False
        return self._own_logs or overrides_compute_loss(self._model) or losses_hold_state(self._model)

    def anything_to_join(self, spec: Any) -> bool:
        """Whether that code hands back a number that must be joined: the step is traced. `spec`: of a batch."""
        self._make = functools.partial(
            ObservedStep, self._model, looked_at(self._model, self._name), spec, self._states, self._own_logs
        )
        try:
            with replaced_functions(), read_together(self._model.variables):
                first = self._make()
                self._say_statistics(first.statistics)
                others = other_states(self._model, first.writes, self._states)
                if first.noted:
                    others += schedules(self._model, first.reads, [*self._states, *others])
                if others:
                    self._states += others
                if not (first.noted or first.writes):
                    return False
                # Where there are others, again: with their values given.
                self._looks = Looks(self._make, self._tolerance, first=None if others else first)
                self._list_keys()
        except Exception as error:
            self._could_not_look(error)
            return self._on_one_unseen
        return True

    def _say_statistics(self, names: Sequence[str]) -> None:
        """Names the layers that compute with statistics of a replica's rows."""
        if names and self._name == "train_step":
            shown = dict.fromkeys(name.rpartition("/")[0] or name for name in names)
            warnings.warn(f"{words.STATISTICS}{', '.join(shown)}. {words.OF_ALL_ROWS}", stacklevel=2)

    def _could_not_look(self, error: Exception) -> None:
        """Takes what has no rule yet for means; in a step of the user's own all rows are computed on one replica."""
        if self._on_one_unseen:
            self.answers[ALL_ROWS] = [ON_ONE, MEAN]
        _log.warning(words.NOT_LOOKED_AT, words.SO_ON_ONE if self._on_one_unseen else words.SO_MEANS, error)
        self.answers.take_unknown_for_means()

    @property
    def _on_one_unseen(self) -> bool:
        own = self._own_step or overrides_compute_loss(self._model)
        return own and self._may_be_whole and self._name != "predict_step"

    def look(self, batch: Any) -> None:
        """Looks at the first rows of a batch. After `anything_to_join`."""
        if self._looks is None:
            return
        units = int(unit_count(batch))
        rows = min(units, _MOST_ROWS)
        if rows < 1:
            return
        batch = slice_units(batch, 0, rows, units)
        if rows == 1:  # which has no parts
            batch, rows = concat_rows([batch] * 2), 2
        values = [np.asarray(tf.convert_to_tensor(v.value).numpy()) for v in self._states]
        try:
            self._join_as_found()
            shown = self._joined_earlier(ShownBatch(self._looks, (batch, rows, values)))
            self._doubt(shown.seen)
            self._note(shown)
        except tf.errors.OpError as error:
            self._could_not_look(error)

    def rules(self) -> JoinRules:
        """The rules as far as they are known; the others are means, and what is written is EQUAL."""
        return join_rules(self.answers, self._noted, self._layers, self._states)

    @property
    def _tolerance(self) -> float:
        policies = {layer.compute_dtype for layer in layers_of(self._model)} | {keras.config.floatx()}
        return max(_TOLERANCE.get(str(dtype), _HALF_TOLERANCE) for dtype in policies)

    # What is joined earlier.

    def _joined_earlier(self, shown: ShownBatch) -> ShownBatch:
        """Joins numbers earlier, if that is what it takes; returns what is shown then."""
        if self.answers[EARLIER] is not None:
            shown = self._parts_shown(shown)
            if not self._joins_writes_alone:
                return shown
        if self.answers.on_one:
            return shown
        shown = self._writes_joined(shown)
        joined = [noted for noted in self._noted.values() if noted[0] in JOINED]
        numbers = [
            key for key in joined if key[0] != "fed" or shown.seen.rule_of_fed(key[1]) is None
        ]  # rows are none
        gradients = [key for key in numbers if key[0] == "gradients"]
        if not numbers:
            return shown
        if gradients and not any(map(shown.seen.rule, gradients)) and not self._whole.bent:
            return shown
        assert self._looks is not None
        added = {noted[1:]: shown.seen.rule(noted) or MEAN for noted in numbers if noted[0] == "added"}
        # A gradient is taken of what they are turned into.
        if gradients and set(added.values()) - {MEAN, ACROSS_ROWS}:
            self._looks = self._looks_that_join(rules=JoinRules(added=added))
            shown = ShownBatch(self._looks, shown.case, self._looks.seen(*shown.case, one=shown.seen.one))
        cases, in_graph = [(shown.case, shown.seen), *shown.thin], not self._model.run_eagerly
        way = find_way(self._looks, self._looks_that_join, cases, numbers, added, in_graph)
        if way is None:
            return shown
        self._looks = way.looks
        # What earlier batches have shown is of numbers that were not joined so; gradients that are may be written, too.
        self.answers.forget(*NUMBERS, "write")
        self._note_way(way.tapes, {**self._parts_of_writes(), **way.parts})
        if way.tapes:
            for key in filter(way.seen.is_same, gradients):
                self.answers[key] = SAME
        return ShownBatch(self._looks, shown.case, way.seen)

    def _looks_that_join(self, at_tape: bool = False, rules: JoinRules | None = None) -> Looks:
        """Traces that join at tapes and parts as said, and what is written as was found."""
        rules = rules or JoinRules()
        parts = {**known_parts(self._parts_of_writes()), **rules.parts}
        return Looks(self._make, self._tolerance, at_tape, dataclasses.replace(rules, parts=parts))

    def _note_way(self, tapes: Sequence[str | None], parts: Parts) -> None:
        """Answers what is joined earlier."""
        names = {noted: key for key, noted in self._noted.items()}
        named = [[list(names.get(noted, noted)), list(rules)] for noted, rules in parts.items()]
        self.answers[EARLIER] = self._traced = [list(tapes), named]
        for noted in parts:
            if noted[0] == "write":  # every replica has the same
                self.answers[names[noted]] = WriteRule(FIRST)

    def _parts_of_writes(self) -> dict[Key, Sequence[str | None]]:
        """The rules of the parts of what is written to states, as far as these are joined so, by the traces' names."""
        _, parts = self.answers[EARLIER] or ((), ())
        return {self._noted[tuple(key)]: rules for key, rules in parts if key[0] == "write"}

    @property
    def _joins_writes_alone(self) -> bool:
        tapes, parts = self.answers[EARLIER]
        return bool(parts) and not tapes and all(key[0] == "write" for key, _ in parts)

    def _writes_joined(self, shown: ShownBatch) -> ShownBatch:
        """Joins states where they are written, if no rule joins them at the end of the step; first those that others use."""
        all_wanted = set(self._writes_without_rule(shown))
        wanted = [key for key in self._whole.noted if key in all_wanted - self._built_on_some(all_wanted)]
        if not wanted:
            return shown
        assert self._looks is not None
        cases = [(shown.case, shown.seen), *shown.thin]
        found = joinable_parts(self._looks, [seen for _, seen in cases], wanted)
        while found:
            try:
                looks = self._looks_that_join(rules=JoinRules(parts=known_parts(found)))
                seen = [looks.seen(*case, one=each.one) for case, each in cases]
            except Exception as error:
                _log.info("What a step writes could not be joined where it is written: %r", error)
                return shown
            wrong = [key for key in found if not all(each.is_same(key) for each in seen)]
            if not wrong:
                self._looks = looks
                self.answers.forget(*NUMBERS)
                self._note_way((), {**self._parts_of_writes(), **found})
                return self._writes_joined(ShownBatch(looks, shown.case, seen[0]))
            found = {key: rules for key, rules in found.items() if key not in wrong}
        return shown

    def _built_on_some(self, writes: set[Key]) -> set[Key]:
        """Those of the writes that are computed of others of them."""
        return {key for key in writes if self._whole.built_on.get(key, set()) & writes}

    def _writes_without_rule(self, shown: ShownBatch) -> list[Key]:
        """The states that no rule joins, or only while rows are alike, or too late, as the traces call them.

        What is declared is joined as it says. Too late is the end of the step for what is read again before.
        """
        # The micro-batches of a pipeline come one after the other; eager tensors do not know what they are made of.
        if self._model._pipeline is not None or self._model.run_eagerly or self._whole.random:
            return []
        found = self._rules_of_writes(shown)
        result = []
        for _, variable, place in self._written():
            noted, rule = self._noted["write", place], found.get(place, WriteRule(MEAN))
            if self.answers["write", place] is not None or declared(variable) is not None:
                continue
            bent = noted in self._whole.bent_writes and rule is not None and rule.kind in (MEAN, SUM)
            if noted in self._whole.noted and (rule is None or bent or noted in self._whole.read_back):
                result.append(noted)
        return result

    def _join_as_found(self) -> None:
        """Lets the traces that are looked at join numbers where another worker, or the run that is resumed, has found."""
        answer = self.answers[EARLIER]
        if answer == self._traced:
            return
        tapes, parts = way_of(answer, self._noted)
        rules = self.answers.of_kind("added").items()
        added = {self._noted[key][1:]: rule for key, rule in rules if isinstance(rule, str)}
        self._looks = Looks(
            self._make, self._tolerance, at_tape=bool(tapes), rules=JoinRules(parts=parts, added=added)
        )
        self._traced = answer

    def _parts_shown(self, shown: ShownBatch) -> ShownBatch:
        """Finds the rules of tapes and parts that were zero on all rows so far."""
        assert self._looks is not None
        looks, seen = self._looks, shown.seen
        tapes, parts = self.answers[EARLIER]
        tapes = [rule or seen.rule(("tape", number)) for number, rule in enumerate(tapes)]

        def of(key: Any) -> Any:
            return self._noted.get(tuple(key), tuple(key))

        parts = [
            [key, [rule or rule_of_part(("part", *of(key), n), looks, seen) for n, rule in enumerate(rules)]]
            for key, rules in parts
        ]
        if [tapes, parts] == self.answers[EARLIER]:
            return shown
        self.answers[EARLIER] = [tapes, parts]
        if ACROSS_ROWS in rules_of_way([tapes, parts]):  # they could be joined as long as they were zero
            self.answers[EARLIER] = [[], []]
            self.answers.forget(*NUMBERS)
        self._join_as_found()
        return ShownBatch(self._looks, shown.case)

    # What is joined when the step is done.

    def _doubt(self, seen: Seen) -> None:
        """Forgets the rules that earlier batches have shown of numbers that no rule joins in this one."""
        for key, rule in self.answers.of_kind(*JOINED).items():
            doubtful = rule in (MEAN, SUM, MEAN_PER_REPLICA) and key not in self._nearest_taken
            if doubtful and seen.rule(self._noted[key]) == ACROSS_ROWS:
                self.answers[key] = None

    def _note(self, shown: ShownBatch) -> None:
        """Answers what a batch shows."""
        no_means: list[Key] = []
        of_losses = False
        self._note_writes(shown)
        for key in self.answers:
            if self.answers[key] is not None or key == EARLIER or key[0] == "write":
                continue
            if key == ALL_ROWS:
                self.answers[key] = self._all_rows(shown.seen)
                continue
            if key[0] == "loss":
                self.answers[key] = self._rule_of_loss(shown)
                continue
            self.answers[key], why = self._rule_of_number(key, shown)
            if why is not None and key[0] in words.WARNED:
                of_losses = True
                what = words.WARNED[key[0]].format(*key[1:])
                self.answers[key] = self._not_joined(what, self.answers[key], why)
            elif why is not None and key[0] in ("log", "fed"):
                no_means.append(key)
        if no_means and not of_losses:  # whose cure is theirs
            self._say_no_means(no_means)

    def _rule_of_number(self, key: Key, shown: ShownBatch) -> tuple[str | None, words.Why | None]:
        """The rule of what the step hands back; where none joins it the nearest one, and why."""
        noted, seen = self._noted[key], shown.seen
        known = seen.rule_of_fed(key[1]) if key[0] in ("fed", "weighted") else None
        if key[0] == "log" and seen.is_same_log(key[1]):  # the result of a metric, say, which may be zero
            known = MEAN
        rule = known or seen.rule(noted)
        if rule is None:
            return None, None
        if key[0] in JOINED and not known and rule != ACROSS_ROWS and shown.looks_across_if_thin(noted):
            rule = ACROSS_ROWS
        if rule != ACROSS_ROWS:
            differs = key[0] in words.WARNED and (self._is_bent(key) or shown.looks_across_later(noted))
            return rule, words.LOOKS_ACROSS if differs else None
        self._nearest_taken.add(key)
        rule, constant = shown.nearest[noted]
        adds = constant is not None and seen.is_left_over(noted, constant)
        return rule, words.ADDS_A_CONSTANT if adds else words.LOOKS_ACROSS

    def _is_bent(self, key: Key) -> bool:
        """Whether another rule may hold for a gradient or an added loss where rows are others."""
        of_tape = key[0] == "gradients" and any(each[0] == "tape" for each in self._whole.bent)
        return of_tape or self._noted[key] in self._whole.bent

    def _say_no_means(self, keys: list[Key]) -> None:
        """Says which logs, and what metrics are fed with, no rule joins."""
        names = dict.fromkeys(map(self._name_of_number, keys))
        what = f"Some numbers of a step ({', '.join(names)})"
        if self._name == "test_step":  # it is there for its numbers alone
            self.answers[keys[0]] = self._not_joined(what, self.answers[keys[0]], words.NO_MEAN)
        else:
            self._warn(f"{what} {words.NO_MEAN.fact}{words.DIFFERS}{words.NO_MEAN.cure}")

    def _name_of_number(self, key: Key) -> str:
        if key[0] == "log":
            return f"the log {key[1].strip('/')!r}"
        return f"what the metric {self._whole.fed_to[key[1]]!r} is updated with"

    def _all_rows(self, seen: Seen) -> Any:
        """ON_ONE, where each number by itself may be joined and all of them are not."""
        rule: Any = None
        if seen.looks_across(noted for noted in self._whole.noted if noted[0] == "order"):
            what = "An output that a loss of your own compares by rows"
            rule = self._not_joined(what, MEAN, words.OTHER_ORDER)
        elif self._losses_share_statistics(seen):
            rule = self._not_joined("The gradients of a step", MEAN, words.SHARED_STATISTICS)
        return rule if is_on_one(rule) else None

    def _losses_share_statistics(self, seen: Seen) -> bool:
        """Whether gradients that are joined in different ways flow back through one synchronized normalization."""
        rules = {seen.rule(noted) or MEAN for noted in self._noted.values() if noted[0] == "gradients"}
        found = (
            layer for layer in layers_of(self._model) if isinstance(layer, keras.layers.BatchNormalization)
        )
        return len(rules) > 1 and any(layer.synchronized for layer in found)

    def _rule_of_loss(self, shown: ShownBatch) -> Any:
        """The rule of the value of `compute_loss`: ACROSS_ROWS also where another one may hold later."""
        rule = self._loss_seen(shown.seen)
        if rule is None or rule == ACROSS_ROWS or is_on_one(rule):
            return rule
        if ("loss",) in self._whole.bent:
            return ACROSS_ROWS
        told = [each for each in shown.later if all(("loss", part) in each.one["notes"] for part in _PARTS)]
        return ACROSS_ROWS if any(self._loss_seen(each) not in (None, rule) for each in told) else rule

    def _loss_seen(self, seen: Seen) -> Any:
        """ACROSS_ROWS only where that is certain: a model may mix the rows itself (batch statistics), and the loss not."""
        rule = seen.rule(("loss",))
        if self._whole.entries:
            return ACROSS_ROWS
        if rule != ACROSS_ROWS:
            return rule
        notes = seen.one["notes"]
        parts = [notes.get(("loss", name)) for name in _PARTS]
        if any(part is None for part in parts):
            return self._not_joined("The value of `compute_loss`", MEAN)
        whole, first, last = parts
        return rule_of(notes["loss",], whole, first, last, seen.share, seen.tolerance)

    # What is said, and what is written.

    def _not_joined(self, what: str, nearest: Any, why: words.Why = words.LOOKS_ACROSS) -> Any:
        """The rule of a number that no rule joins: that all rows are computed on one replica, where that can be."""
        if self._whole.random:
            return nearest
        self._warn(
            f"{what} {why.fact}{words.ON_ONE_REPLICA if self._may_be_whole else words.DIFFERS}{why.cure}"
        )
        return [ON_ONE, nearest] if self._may_be_whole else nearest

    def _warn(self, words: str) -> None:
        """Warns once of a number, unless numbers are drawn beside it: it would be another in any case."""
        if not self._whole.random:
            warnings.warn(words, stacklevel=2)

    def _note_writes(self, shown: ShownBatch) -> None:
        """Answers by which rules the states are joined that a batch shows the step to write."""
        for place, rule in self._rules_of_writes(shown).items():
            variable = self._states[place]
            self.answers["write", place] = rule or declared(variable) or self._fallback(variable)

    def _rules_of_writes(self, shown: ShownBatch) -> dict[int, WriteRule | None]:
        """By their places, the rules of the states that have none yet and that a batch shows the step to write."""
        written = [
            (number, place) for number, _, place in self._written() if self.answers["write", place] is None
        ]
        if not written:
            return {}
        try:
            return shown.write_rules(written)
        except tf.errors.OpError:
            _log.info("The state of layers was looked at with its present values only.")
            return shown.write_rules_now(written)

    def _fallback(self, variable: keras.Variable) -> WriteRule:
        if self._own_step:  # a queue of keys, say; layers of one's own that normalize are as those of Keras
            what = f"The value that a step writes to {variable.path!r}"
            rule = self._not_joined(what, MEAN, words.NO_STATE)
            if is_on_one(rule):
                self.answers[ALL_ROWS] = rule
                return WriteRule(FIRST)
        rule = WriteRule(MEAN if tf.as_dtype(variable.dtype).is_floating else FIRST)
        what = "the mean, weighted with the rows," if rule.kind == MEAN else "that of the first replica"
        _log.warning(
            "The value that a step writes to %r looks across the rows of a batch: of the values of the replicas %s is "
            'kept. Declare it with `add_weight(aggregation="mean" | "sum" | "only_first_replica")`.',
            variable.path,
            what,
        )
        return rule
