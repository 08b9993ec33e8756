"""What is asked of the numbers that user code hands back, and the answers so far: by which rule replicas join each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from ...distribute.join_rules import EQUAL, MEAN, ON_ONE, JoinRules, WriteRule
from . import rule_words as words
from .earlier_joins import known_parts

Key = tuple[Any, ...]

JOINED = ("gradients", "log", "fed", "added")
NUMBERS = (*JOINED, "weighted")
ALL_ROWS = ("all rows",)  # ON_ONE, where that is told by nothing else
WITHOUT_ROWS = ("without rows",)
# The rules of what is joined before the step is done with it: of tapes, of parts of numbers.
EARLIER = ("earlier",)
# The numbers of the layers that are given the rows of all replicas.
GATHERED = ("gathered layers",)
NOT_GATHERED = -1  # among them: it does not help


_OF_THE_STEP = (EARLIER, ALL_ROWS, GATHERED)
# Noted beside the numbers; needs no rule of its own.
_NO_KEYS = ("size", "same", "same log", "tape", "part", "order", "in branch", "write", "rows")


class Names:
    """What has to be found, by what is the same on every worker: numbers in place of ids.

    Args:
        noted: what a trace has noted.
        writes: the variables that it writes.
        layers: the ids of the model's layers.
        states: the variables whose values traces are given.

    Attributes:
        noted: key -> what traces call it: of numbers, then of states that are written.
        layers, states: by the number, or place, that keys have for them.
    """

    def __init__(
        self,
        noted: Sequence[Any] = (),
        writes: Sequence[keras.Variable] = (),
        layers: Sequence[int] = (),
        states: Sequence[keras.Variable] = (),
    ) -> None:
        self.layers, self.states = layers, states
        number = {key: place for place, key in enumerate(layers)}
        self.noted: dict[Key, Any] = {}
        for what in noted:
            if not (what[0] in _NO_KEYS or (what[0] == "loss" and len(what) > 1)):
                key = ("added", number[what[1]], what[2]) if what[0] == "added" else what
                self.noted[key] = what
        self.noted |= {("write", place): ("write", id(v)) for _, v, place in self.written(writes)}

    def written(self, writes: Sequence[keras.Variable]) -> list[tuple[int, keras.Variable, int]]:
        """Of each state among these variables: its number there, the variable, its place among the states."""
        places = {id(v): place for place, v in enumerate(self.states)}
        return [(n, v, places[id(v)]) for n, v in enumerate(writes) if id(v) in places]

    def waiting(self, writes: Sequence[keras.Variable], answers: Answers) -> list[tuple[int, int]]:
        """The number and the place of those that have no rule yet."""
        return [(n, place) for n, _, place in self.written(writes) if answers["write", place] is None]


class Answers:
    """The rule of each key; None: not known yet. The keys are the same on every worker, in the same order.

    Args:
        keys: of numbers that the step hands back, by their kind (`NUMBERS`, "loss"), and of states that it writes.
        without_rows: the keys of outputs that have no rows, if there are any.
    """

    def __init__(self, keys: Iterable[Key] = (), without_rows: Sequence[Any] = ()) -> None:
        self._rules: dict[Key, Any] = dict.fromkeys(keys)
        if without_rows:
            self._rules[WITHOUT_ROWS] = without_rows
        self._rules |= {EARLIER: None, ALL_ROWS: None, GATHERED: None}

    def __getitem__(self, key: Key) -> Any:
        return self._rules[key]

    def __setitem__(self, key: Key, rule: Any) -> None:
        self._rules[key] = rule

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rules)

    def of_kind(self, *kinds: str) -> dict[Key, Any]:
        """The rules of all keys of these kinds."""
        return {key: rule for key, rule in self._rules.items() if key[0] in kinds}

    def forget(self, *kinds: str) -> None:
        """What earlier batches have shown of these kinds is no answer any more."""
        self._rules.update(dict.fromkeys(self.of_kind(*kinds)))

    def not_shown(self) -> list[Key]:
        """What has no rule yet. Of what is fed with a weight it is not waited for."""
        waits = [key for key in self._rules if key[0] != "weighted" and key not in _OF_THE_STEP]
        result = [key for key in waits if self._rules[key] is None]
        return [*result, EARLIER] if None in rules_of_way(self._rules[EARLIER]) else result

    def take_unknown_for_means(self) -> None:
        """Gives every key without a rule that of a mean over the rows; states are taken for equal on all replicas."""
        for key in self._rules:
            if self._rules[key] is None and key not in _OF_THE_STEP:
                self._rules[key] = WriteRule(EQUAL) if key[0] == "write" else MEAN

    @property
    def on_one(self) -> bool:
        """Whether one replica computes all rows."""
        return any(map(is_on_one, self._rules.values()))

    @property
    def gathered(self) -> list[int]:
        """The numbers of the layers that are given the rows of all replicas."""
        return [number for number in self._rules[GATHERED] or () if number != NOT_GATHERED]

    @property
    def names(self) -> list[str]:
        """What each answer is about; the same in every process and run of a program."""
        return [" ".join(map(str, key)) for key in self._rules]

    @property
    def values(self) -> list[Any]:
        """The answers: JSON values."""
        return list(self._rules.values())

    @property
    def taken_for_means(self) -> list[str]:
        """The numbers that have not shown their rules, beside what is written."""
        return [
            words.NAMES[key[0]].format(*(str(part).lstrip("/") for part in key[1:]))
            for key in self.not_shown()
            if key[0] != "write"
        ]

    def adopt(self, answers: Sequence[list[Any]]) -> None:
        """Takes for each rule the first answer that any worker knows; `answers` are the `values` of each.

        What rows show that no rule joins, others only do not show. The rules of numbers are those of a worker whose numbers
        are joined earlier as everyone's will be.
        """
        everyone = [dict(zip(self._rules, values)) for values in answers]
        ways = [each[EARLIER] for each in everyone if each[EARLIER] is not None]
        way = min(ways, key=lambda way: rules_of_way(way).count(None), default=None)
        of_numbers = [each for each in everyone if each[EARLIER] == way] if way else everyone
        for key in self._rules:
            told = of_numbers if key[0] in NUMBERS else everyone
            self._rules[key] = _first_known(each[key] for each in told)
        self._rules[EARLIER] = way
        gathered = [each[GATHERED] for each in everyone if each[GATHERED] is not None]
        union = sorted({number for numbers in gathered for number in numbers})
        self._rules[GATHERED] = [NOT_GATHERED] if NOT_GATHERED in union else union if gathered else None
        elsewhere = any(is_on_one(rule) for values in answers for rule in values)
        if elsewhere and not self.on_one:
            self._rules[ALL_ROWS] = [ON_ONE, MEAN]


def join_rules(answers: Answers, names: Names) -> JoinRules:
    """The rules as far as they are known; the others are means, and what is written is EQUAL."""

    def of(kind: str) -> dict[Key, Any]:
        rules = answers.of_kind(kind)
        return {key[1:]: rule[1] if is_on_one(rule) else rule for key, rule in rules.items()}

    def fed(kind: str) -> dict[int, str]:
        return {number: rule for (number,), rule in of(kind).items() if rule is not None}

    gradients = {number: rule for (number,), rule in of("gradients").items()}
    tapes, parts = way_of(answers[EARLIER], names.noted)
    return JoinRules(
        loss=of("loss").get(()) or MEAN,
        tapes=tapes,
        parts=parts,
        without_rows=tuple(answers.of_kind(*WITHOUT_ROWS).get(WITHOUT_ROWS, ())),
        gradients=tuple(gradients.get(number) or MEAN for number in range(max(gradients, default=-1) + 1)),
        logs={name: rule or MEAN for (name,), rule in of("log").items()},
        fed=fed("fed"),
        weighted=fed("weighted"),
        added={(names.layers[number], count): rule or MEAN for (number, count), rule in of("added").items()},
        writes={
            id(names.states[at]): WriteRule(*rule) if rule else WriteRule(EQUAL)
            for (at,), rule in of("write").items()
        },
        gathered_layers=frozenset(names.layers[number] for number in answers.gathered),
        on_one=answers.on_one,
    )


def way_of(answer: Any, noted: dict[Key, Any]) -> tuple[tuple[str, ...], dict[Key, tuple[str, ...]]]:
    """The rules of tapes and of parts, as in `JoinRules`, from the answer for EARLIER."""
    tapes, parts = answer or ((), ())
    rules = known_parts({noted.get(tuple(key), tuple(key)): rules for key, rules in parts})
    return tuple(rule or MEAN for rule in tapes), rules


def rules_of_way(answer: Any) -> list[Any]:
    """Of all that is joined earlier."""
    tapes, parts = answer or ((), ())
    return [*tapes, *(rule for _, rules in parts for rule in rules)]


def is_on_one(rule: Any) -> bool:
    """Whether the rule is that one replica computes all rows."""
    return isinstance(rule, list | tuple) and bool(rule) and rule[0] == ON_ONE


def _first_known(rules: Iterable[Any]) -> Any:
    """The first rule that is known; before others that no rule joins the number."""
    known = [rule for rule in rules if rule is not None]
    return next((rule for rule in known if is_on_one(rule)), known[0] if known else None)
