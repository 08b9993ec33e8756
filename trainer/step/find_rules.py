r"""How the numbers that user code hands back are joined: found out from real rows, without a trace in the state.

What the step hands back on a few real rows is compared with what it hands back on parts of them (`compared_parts.py`).

Context: host.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import is_own, layers_of
from ...compat.replaced import replaced_functions
from ...distribute.join_rules import (
    ACROSS_ROWS,
    EQUAL,
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
from .compared_parts import Seen, another, degree, much_later, rule_of, unchanged, write_rule
from .earlier_joins import Case, find_way, known_parts, rule_of_part
from .looks import Looks
from .observed_step import ObservedStep, looked_at
from .own_states import losses_hold_state, other_states, schedules, states_of_layers
from .step_loss import overrides_compute_loss
from .thinned import thinned

_MOST_ROWS = 48  # that are computed on
_LATER = (1, 1000)  # by which counts and weights of losses are larger, to see parts that begin later
_PARTS = ("whole", "first", "last")
_TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
_HALF_TOLERANCE = 3e-2

_ALL_ROWS = ("all rows",)  # ON_ONE, where that is told by nothing else
# Noted beside the numbers; needs no rule of its own.
_NO_KEYS = ("size", "same", "same log", "tape", "part", "order", "in branch")
_JOINED = ("gradients", "log", "fed", "added")
_NUMBERS = (*_JOINED, "weighted")
_WITHOUT_ROWS = ("without rows",)
# The rules of what is joined before the step is done with it: of tapes, of parts of numbers.
_EARLIER = ("earlier",)

_log = logging.getLogger("unisono")


class RuleFinder:
    """Finds the `JoinRules` of the training, evaluation or prediction steps of a model.

    Args:
        model: built.
        name: of the step: "train_step", "test_step" or "predict_step".
    """

    def __init__(self, model: TrainedModel, name: str) -> None:
        self._model, self._name = model, name
        self._own_step = model._overrides_step(name)
        self._own_logs = name != "predict_step" and model._has_own_logs(name == "train_step")
        self._states = states_of_layers(model)
        self._looks: Looks | None = None
        self._keys: list[tuple[Any, ...]] = []  # what has to be found
        self._found: list[Any] = []  # the rule of each key; None: not known
        self._noted: dict[Any, Any] = {}  # what the traces call each key
        self._layers: list[int] = []
        self._nearest_taken: set[tuple[Any, ...]] = set()  # of the numbers that no rule joins
        self._thin: tuple[Any, Any, list[tuple[Case, Seen]]] = (None, None, [])  # of which traces and batch
        self._traced: Any = None  # the rules of what is joined earlier in the traces that are looked at
        self._may_be_whole = model._pipeline is None  # whose stages hold parts of each batch

    @property
    def _whole(self) -> ObservedStep:
        assert self._looks is not None
        return self._looks.whole

    def _list_keys(self) -> None:
        """Names what has to be found by what is the same on every worker: a number in place of an id."""
        every = layers_of(self._model)
        self._layers = [id(layer) for layer in every]
        number = {key: place for place, key in enumerate(self._layers)}
        for noted in self._whole.noted:
            if (noted[0] == "loss" and len(noted) > 1) or noted[0] in _NO_KEYS:
                continue
            key = ("added", number[noted[1]], noted[2]) if noted[0] == "added" else noted
            self._noted[key] = noted
        places = {id(v): place for place, v in enumerate(self._states)}
        written = [("write", places[id(v)]) for v in self._whole.writes if id(v) in places]
        self._keys = [*self._noted, *written]
        self._found = [None] * len(self._keys)
        if self._whole.without_rows:
            self._keys.append(_WITHOUT_ROWS)
            self._found.append(self._whole.without_rows)
        self._keys += [_EARLIER, _ALL_ROWS]
        self._found += [None, None]

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

    def _could_not_look(self, error: Exception) -> None:
        """Takes what has no rule yet for means; in a step of the user's own all rows are computed on one replica."""
        if self._on_one_unseen:
            if _ALL_ROWS not in self._keys:
                self._keys.append(_ALL_ROWS)
                self._found.append(None)
            self._found[self._keys.index(_ALL_ROWS)] = [ON_ONE, MEAN]
        _log.warning(words.NOT_LOOKED_AT, words.SO_ON_ONE if self._on_one_unseen else words.SO_MEANS, error)
        unknown = (None if key in (_EARLIER, _ALL_ROWS) else _unknown(key) for key in self._keys)
        self._found = [new if rule is None else rule for rule, new in zip(self._found, unknown)]

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
            self._note(self._looks.seen(batch, rows, values), batch, rows, values)
        except tf.errors.OpError as error:
            self._could_not_look(error)

    @property
    def known(self) -> bool:
        """Whether every rule is known."""
        return not self._not_shown()

    @property
    def taken_for_means(self) -> list[str]:
        """The numbers that have not shown their rules, beside what is written."""
        return [
            words.NAMES[key[0]].format(*(str(part).lstrip("/") for part in key[1:]))
            for key in self._not_shown()
            if key[0] != "write"
        ]

    def _not_shown(self) -> list[tuple[Any, ...]]:
        """What has no rule yet. Of what is fed with a weight it is not waited for."""
        found = zip(self._keys, self._found)
        return [
            key
            for key, rule in found
            if (rule is None and key[0] not in ("weighted", *_EARLIER, *_ALL_ROWS))
            or (key == _EARLIER and None in _rules_of_way(rule))
        ]

    @property
    def answers(self) -> list[Any]:
        """What was found so far, None for what is not known: JSON values, in the same order on every worker."""
        return list(self._found)

    @property
    def names(self) -> list[str]:
        """What each answer is about; the same in every process and run of a program."""
        return [" ".join(map(str, key)) for key in self._keys]

    def adopt(self, answers: Sequence[list[Any]]) -> None:
        """Takes for each rule the first answer that any worker knows; `answers` are those of each.

        What rows show that no rule joins, others only do not show. The rules of numbers are those of a worker whose numbers
        are joined earlier as everyone's will be.
        """
        place = self._keys.index(_EARLIER) if _EARLIER in self._keys else None
        ways = [] if place is None else [each[place] for each in answers if each[place] is not None]
        way = min(ways, key=lambda way: _rules_of_way(way).count(None), default=None)
        of_numbers = [each for each in answers if place is not None and each[place] == way]
        self._found = [
            _first_known(each[number] for each in (of_numbers if key[0] in _NUMBERS and way else answers))
            for number, key in enumerate(self._keys)
        ]
        if place is not None:
            self._found[place] = way
        elsewhere = any(_is_on_one(rule) for each in answers for rule in each)
        if elsewhere and not any(map(_is_on_one, self._found)):
            self._found[self._keys.index(_ALL_ROWS)] = [ON_ONE, MEAN]

    def rules(self) -> JoinRules:
        """The rules as far as they are known; the others are means, and what is written is EQUAL."""
        found = dict(zip(self._keys, self._found))

        on_one = any(_is_on_one(rule) for rule in found.values())
        found = {key: rule[1] if _is_on_one(rule) else rule for key, rule in found.items()}

        def of(kind: str) -> dict[Any, str]:
            return {key[1]: rule or MEAN for key, rule in found.items() if key[0] == kind}

        def fed(kind: str) -> dict[int, str]:
            return {key[1]: rule for key, rule in found.items() if key[0] == kind and rule is not None}

        added = {key[1:]: rule or MEAN for key, rule in found.items() if key[0] == "added"}
        written = {
            key[1]: WriteRule(*rule) if rule else WriteRule(EQUAL)
            for key, rule in found.items()
            if key[0] == "write"
        }
        tapes, parts = self._way(found.get(_EARLIER))
        return JoinRules(
            loss=found.get(("loss",)) or MEAN,
            tapes=tapes,
            parts=parts,
            without_rows=tuple(found.get(_WITHOUT_ROWS, ())),
            gradients=_in_order(of("gradients")),
            logs=of("log"),
            fed=fed("fed"),
            weighted=fed("weighted"),
            added={(self._layers[number], count): rule for (number, count), rule in added.items()},
            writes={id(self._states[place]): rule for place, rule in written.items()},
            on_one=on_one,
        )

    @property
    def _tolerance(self) -> float:
        policies = {layer.compute_dtype for layer in layers_of(self._model)} | {keras.config.floatx()}
        return max(_TOLERANCE.get(str(dtype), _HALF_TOLERANCE) for dtype in policies)

    def _earlier(self, seen: Seen, batch: Any, rows: int, values: Sequence[np.ndarray]) -> Seen:
        """Joins numbers earlier, if that is what it takes; returns what is seen then."""
        place = self._keys.index(_EARLIER)
        if self._found[place] is not None:
            return self._parts_seen(seen, (batch, rows, values))
        if any(map(_is_on_one, self._found)):
            return seen
        joined = [noted for noted in self._noted.values() if noted[0] in _JOINED]
        numbers = [
            key for key in joined if key[0] != "fed" or seen.rule_of_fed(key[1]) is None
        ]  # rows are none
        gradients = [key for key in numbers if key[0] == "gradients"]
        if not numbers:
            return seen
        if gradients and not any(map(seen.rule, gradients)) and not self._whole.bent:
            return seen
        assert self._looks is not None
        make = functools.partial(Looks, self._make, self._tolerance)
        case, in_graph = (batch, rows, values), not self._model.run_eagerly
        added = {noted[1:]: seen.rule(noted) or MEAN for noted in numbers if noted[0] == "added"}
        # A gradient is taken of what they are turned into.
        if gradients and set(added.values()) - {MEAN, ACROSS_ROWS}:
            self._looks = make(rules=JoinRules(added=added))
            seen = self._looks.seen(*case, one=seen.one)
        cases = [(case, seen), *self._seen_thin(*case)]
        way = find_way(self._looks, make, cases, numbers, added, in_graph)
        if way is None:
            return seen
        self._looks = way.looks
        names = {noted: key for key, noted in self._noted.items()}
        parts = [[list(names.get(noted, noted)), list(rules)] for noted, rules in way.parts.items()]
        # What earlier batches have shown is of numbers that were not joined so.
        self._found = [None if key[0] in _NUMBERS else old for key, old in zip(self._keys, self._found)]
        # Gradients that are joined may be written, too.
        self._found = [None if key[0] == "write" else old for key, old in zip(self._keys, self._found)]
        self._found[place] = self._traced = [way.tapes, parts]
        if way.tapes:
            for key in filter(way.seen.is_same, gradients):
                self._found[self._keys.index(key)] = SAME
        return way.seen

    def _way(self, answer: Any) -> tuple[tuple[str, ...], dict[tuple[Any, ...], tuple[str, ...]]]:
        """The rules of tapes and of parts, as in `JoinRules`."""
        tapes, parts = answer or ((), ())
        rules = known_parts({self._noted.get(tuple(key), tuple(key)): rules for key, rules in parts})
        return tuple(rule or MEAN for rule in tapes), rules

    def _join_as_found(self) -> None:
        """Lets the traces that are looked at join numbers where another worker, or the run that is resumed, has found."""
        answer = self._found[self._keys.index(_EARLIER)]
        if answer == self._traced:
            return
        tapes, parts = self._way(answer)
        added = {
            self._noted[key][1:]: rule
            for key, rule in zip(self._keys, self._found)
            if key[0] == "added" and isinstance(rule, str)
        }
        self._looks = Looks(
            self._make, self._tolerance, at_tape=bool(tapes), rules=JoinRules(parts=parts, added=added)
        )
        self._traced = answer

    def _parts_seen(self, seen: Seen, case: Any) -> Seen:
        """Finds the rules of tapes and parts that were zero on all rows so far."""
        assert self._looks is not None
        place = self._keys.index(_EARLIER)
        tapes, parts = self._found[place]
        tapes = [rule or seen.rule(("tape", number)) for number, rule in enumerate(tapes)]
        looks = self._looks

        def of(key: Any) -> Any:
            return self._noted.get(tuple(key), tuple(key))

        parts = [
            [key, [rule or rule_of_part(("part", *of(key), n), looks, seen) for n, rule in enumerate(rules)]]
            for key, rules in parts
        ]
        if [tapes, parts] == self._found[place]:
            return seen
        self._found[place] = [tapes, parts]
        if ACROSS_ROWS in _rules_of_way(self._found[place]):  # they could be joined as long as they were zero
            self._found[place] = [[], []]
            self._found = [None if key[0] in _NUMBERS else old for key, old in zip(self._keys, self._found)]
        self._join_as_found()
        return self._looks.seen(*case)

    def _note(self, seen: Seen, batch: Any, rows: int, values: Sequence[np.ndarray]) -> None:
        seen = self._earlier(seen, batch, rows, values)
        self._doubt(seen)
        nearest = later = None
        thin = [each for _, each in self._seen_thin(batch, rows, values)]
        no_means: dict[int, str] = {}
        of_losses = False
        writes = self._write_rules(batch, rows, values, seen)
        for place, key in enumerate(self._keys):
            if self._found[place] is not None:
                continue
            if key == _EARLIER:
                continue
            if key == _ALL_ROWS:
                self._found[place] = self._all_rows(seen)
                continue
            if key[0] == "write":
                self._found[place] = writes.get(key[1])
                continue
            known = seen.rule_of_fed(key[1]) if key[0] in ("fed", "weighted") else None
            if key[0] == "log" and seen.is_same_log(key[1]):  # the result of a metric, say, which may be zero
                known = MEAN
            rule = known or seen.rule(self._noted[key])
            if key[0] == "loss":
                rule = self._loss_rule(rule, seen)
                if rule is not None and key in self._whole.bent and not _is_on_one(rule):
                    rule = ACROSS_ROWS
            joined = rule not in (None, ACROSS_ROWS) and not _is_on_one(rule)
            if joined and key[0] in _JOINED and not known and _any_across(self._noted[key], thin):
                rule, joined = ACROSS_ROWS, False
            if joined and key[0] in ("loss", *words.WARNED):
                later = [*self._seen_later(batch, rows, values), *thin] if later is None else later
                if key[0] == "loss" and self._loss_differs(str(rule), later):
                    rule = ACROSS_ROWS
                elif key[0] != "loss" and (self._is_bent(key) or _any_across(self._noted[key], later)):
                    of_losses = True
                    rule = self._not_joined(words.WARNED[key[0]].format(*key[1:]), str(rule))
            elif rule == ACROSS_ROWS and key[0] != "loss":
                self._nearest_taken.add(key)
                nearest = nearest or self._nearest(batch, rows, values)
                rule, constant = nearest[self._noted[key]]
                if key[0] in ("log", "fed"):
                    no_means[place] = self._name_of_number(*key)
                if key[0] in words.WARNED:
                    of_losses = True
                    adds = constant is not None and seen.is_left_over(self._noted[key], constant)
                    why = words.ADDS_A_CONSTANT if adds else words.LOOKS_ACROSS
                    rule = self._not_joined(words.WARNED[key[0]].format(*key[1:]), rule, why)
            self._found[place] = rule
        if no_means and not of_losses:  # whose cure is theirs
            what = f"Some numbers of a step ({', '.join(dict.fromkeys(no_means.values()))})"
            if self._name == "test_step":  # it is there for its numbers alone
                place = next(iter(no_means))
                self._found[place] = self._not_joined(what, self._found[place], words.NO_MEAN)
            else:
                self._warn(f"{what} {words.NO_MEAN.fact}{words.DIFFERS}{words.NO_MEAN.cure}")

    def _is_bent(self, key: tuple[Any, ...]) -> bool:
        """Whether another rule may hold for a gradient or an added loss where rows are others."""
        of_tape = key[0] == "gradients" and any(each[0] == "tape" for each in self._whole.bent)
        return of_tape or self._noted[key] in self._whole.bent

    def _doubt(self, seen: Seen) -> None:
        """Forgets the rules that earlier batches have shown of numbers that no rule joins in this one."""
        for place, key in enumerate(self._keys):
            doubtful = key[0] in _JOINED and self._found[place] in (MEAN, SUM, MEAN_PER_REPLICA)
            if doubtful and key not in self._nearest_taken and seen.rule(self._noted[key]) == ACROSS_ROWS:
                self._found[place] = None

    def _all_rows(self, seen: Seen) -> Any:
        """ON_ONE, where each number by itself may be joined and all of them are not."""
        rule: Any = None
        if seen.looks_across(noted for noted in self._whole.noted if noted[0] == "order"):
            what = "An output that a loss of your own compares by rows"
            rule = self._not_joined(what, MEAN, words.OTHER_ORDER)
        elif self._losses_share_statistics(seen):
            rule = self._not_joined("The gradients of a step", MEAN, words.SHARED_STATISTICS)
        return rule if _is_on_one(rule) else None

    def _losses_share_statistics(self, seen: Seen) -> bool:
        """Whether gradients that are joined in different ways flow back through one synchronized normalization."""
        rules = {seen.rule(noted) or MEAN for noted in self._noted.values() if noted[0] == "gradients"}
        found = (
            layer for layer in layers_of(self._model) if isinstance(layer, keras.layers.BatchNormalization)
        )
        return len(rules) > 1 and any(layer.synchronized for layer in found)

    def _name_of_number(self, kind: str, what: Any) -> str:
        if kind == "log":
            return f"the log {what.strip('/')!r}"
        return f"what the metric {self._whole.fed_to[what]!r} is updated with"

    def _seen_later(self, batch: Any, rows: int, values: Sequence[np.ndarray]) -> list[Seen]:
        """What is seen with larger counts and weights: a part of a loss may begin later. Nothing where there are none."""
        assert self._looks is not None
        result = []
        for steps in _LATER:
            others = [much_later(value, steps) for value in values]
            if all(value is other for value, other in zip(values, others)):
                break
            with contextlib.suppress(tf.errors.OpError):
                result.append(self._looks.seen(batch, rows, others))
        return result

    def _seen_thin(self, batch: Any, rows: int, values: Sequence[np.ndarray]) -> list[tuple[Case, Seen]]:
        """What is seen of the batch with less in it, and of what; nothing where the code refuses that."""
        assert self._looks is not None
        looks, of_batch, found = self._thin
        if looks is not self._looks or of_batch is not batch:
            case, found = (thinned(batch), rows, values), []
            with contextlib.suppress(tf.errors.OpError):
                found.append((case, self._looks.seen(*case)))
            self._thin = self._looks, batch, found
        return found

    def _loss_differs(self, rule: str, later: Sequence[Seen]) -> bool:
        """Whether the value of `compute_loss` is joined by another rule later."""
        told = [each for each in later if all(("loss", part) in each.one["notes"] for part in _PARTS)]
        rules = [self._loss_rule(each.rule(("loss",)), each) for each in told]
        return any(each not in (None, rule) for each in rules)

    def _loss_rule(self, rule: str | None, seen: Seen) -> str | None:
        """ACROSS_ROWS only where that is certain: a model may mix the rows itself (batch statistics), and the loss not."""
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

    def _nearest(
        self, batch: Any, rows: int, values: Sequence[np.ndarray]
    ) -> dict[Any, tuple[str, np.ndarray | None]]:
        """Whether what is noted grows with the rows, and what of it does not: the same rows once and twice are compared."""
        assert self._looks is not None
        one, once, _, twice = self._looks.twice(batch, rows, values)
        rules = {key: degree(one[key], once[key], twice[key]) for key in one if key in once}
        return {
            key: (rule, 2 * once[key] - twice[key] if rule == SUM else None) for key, rule in rules.items()
        }

    def _not_joined(self, what: str, nearest: str, why: words.Why = words.LOOKS_ACROSS) -> Any:
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

    def _write_rules(
        self, batch: Any, rows: int, values: Sequence[np.ndarray], seen: Seen
    ) -> dict[int, WriteRule | None]:
        """The rule of each state that the step writes, by its place, from the values of the states now and others."""
        assert self._looks is not None
        places = {id(v): i for i, v in enumerate(self._states)}
        waiting = {key[1] for key in self._not_shown() if key[0] == "write"}
        looked = [(n, v, places[id(v)]) for n, v in enumerate(self._whole.writes) if id(v) in places]
        written = [each for each in looked if each[-1] in waiting]
        if not written:
            return {}
        others = [another(value) for value in values]
        for number, _, place in written:  # as large as what is added, so that both keep their digits
            others[place] = another(values[place], size=_largest(seen.writes(number)[0]))
        cases = [(values, seen)]
        try:
            cases.append((others, self._looks.seen(batch, rows, others)))
        except tf.errors.OpError:
            _log.info("The state of layers was looked at with its present values only.")
        rules: dict[int, WriteRule | None] = {}
        for number, variable, place in written:
            each = [(old[place], *case.writes(number)) for old, case in cases]
            if unchanged(each):
                continue
            rule = write_rule(each, seen.share, seen.tolerance)
            rules[place] = rule or declared(variable) or self._fallback(variable)
        return rules

    def _fallback(self, variable: keras.Variable) -> WriteRule:
        if self._own_step:  # a queue of keys, say; layers of one's own that normalize are as those of Keras
            what = f"The value that a step writes to {variable.path!r}"
            place = self._keys.index(_ALL_ROWS)
            rule = self._not_joined(what, MEAN, words.NO_STATE)
            if _is_on_one(rule):
                self._found[place] = rule
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


def _unknown(key: tuple[Any, ...]) -> Any:
    return WriteRule(EQUAL) if key[0] == "write" else MEAN


def _any_across(key: Any, cases: Sequence[Seen]) -> bool:
    return any(seen.rule(key) == ACROSS_ROWS for seen in cases)


def _rules_of_way(answer: Any) -> list[Any]:
    """Of all that is joined earlier."""
    tapes, parts = answer or ((), ())
    return [*tapes, *(rule for _, rules in parts for rule in rules)]


def _first_known(rules: Iterable[Any]) -> Any:
    """The first rule that is known; before others that no rule joins the number."""
    known = [rule for rule in rules if rule is not None]
    return next((rule for rule in known if _is_on_one(rule)), known[0] if known else None)


def _is_on_one(rule: Any) -> bool:
    return isinstance(rule, list | tuple) and bool(rule) and rule[0] == ON_ONE


def _largest(value: np.ndarray) -> float:
    return float(np.abs(value).max(initial=0.0)) if value.dtype.kind == "f" else 0.0


def _in_order(rules: dict[int, str]) -> tuple[str, ...]:
    return tuple(rules.get(number, MEAN) for number in range(max(rules, default=-1) + 1))
