"""Values of many kinds, and which of them each kind of argument accepts."""

from __future__ import annotations

from typing import Any

from uses.bench import NAN, np


class Thing:
    """Not a number, nor any other valid argument."""

    def __repr__(self) -> str:
        return "<a thing>"


VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "-1": -1,
    "0": 0,
    "2": 2,
    "1.5": 1.5,
    "NaN": NAN,
    "infinity": float("inf"),
    "no text": "",
    "text": "nope",
    "long text": "x" * 5000,
    "bytes": b"x",
    "[]": [],
    "{}": {},
    "[1, 2]": [1, 2],
    "thing": Thing(),
    "class": Thing,
    "function": lambda: 0,
    "array": np.ones(2),
    "array of NaN": np.array(NAN),
    "10**30": 10**30,
    "1j": 1j,
}
EVERYTHING = frozenset(VALUES)

_POSITIVE = {"2", "1.5", "10**30"}
# The values that an argument accepts, by its kind.
KINDS: dict[str, frozenset[str]] = {
    kind: frozenset(labels)
    for kind, labels in {
        "nothing": (),
        "none": {"None"},
        "empty list": {"[]"},
        "flag": {"True", "0"},
        "flag or none": {"True", "0", "None"},
        "truth of anything, as in Keras": EVERYTHING - {"array"},
        "anything, shown as text": EVERYTHING,
        "count": {"0", "2", "10**30"},
        "count or none": {"0", "2", "10**30", "None"},
        "count from 1": {"2", "10**30"},
        "count from 1 or none": {"2", "10**30", "None"},
        "count below 64": {"2"},
        "small number": {"0"},
        "share": {"0"},
        "whole": {"-1", "0", "2", "10**30"},
        "number": _POSITIVE | {"-1", "0"},
        "positive": _POSITIVE,
        "positive or none": _POSITIVE | {"None"},
        "positive or infinite": _POSITIVE | {"infinity"},
        "positive or infinite or none": _POSITIVE | {"infinity", "None"},
        "not negative": _POSITIVE | {"0"},
        "not negative or none": _POSITIVE | {"0", "None"},
        "not positive": {"-1", "0"},
        "path": {"text"},
        "path or none": {"text", "None"},
        "name": {"text", "long text"},
        "name, or none": {"text", "long text", "no text", "None"},
        "frequency": {"2", "10**30", "1.5"},
        "function": {"class", "function"},
        "dict or none": {"None", "{}"},
        "pairs": {"[]", "{}", "no text"},
        "pair of steps or none": {"None", "[1, 2]"},
        "port or none": {"None", "2"},
        "any number or none": _POSITIVE | {"-1", "0", "infinity", "None"},
        "count from 1 or True": {"2", "10**30", "True"},
        "rate": {"0", "2", "1.5", "10**30", "function"},
        "true": {"True"},
        "numbers of layers": {"[1, 2]"},
        "verbose": {"True", "0", "2"},
        "callbacks": {"None", "[]", "{}"},
        "epochs": {"0", "2"},
        "shuffle": {"None", "True", "0"},
        "split": {"None", "0"},
        "epochs to validate": {"2", "10**30", "[]", "[1, 2]"},
    }.items()
}
