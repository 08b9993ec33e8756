"""Draws calls of operations and programs of a few of them from a seed."""

from __future__ import annotations

import ast
import collections
import functools
import inspect
import random
import re
from pathlib import Path
from typing import Any

import tensorflow as tf
from partition.drawn_case import ENDINGS, Argument, Case, Step
from tensorflow.python.framework import op_def_registry

GENERIC = {  # by the number of tensors
    1: ("a", "a,b", "a,b,c", "a,b,b", "a,b,c,d", "."),
    2: (
        "a,b a,b",
        "a,b b",
        "a,b a,1",
        "a,1 b",
        "a a",
        "a,b .",
        "a,b,c a,b,c",
        "a,b,c a,1,c",
        "a 1",
        ". a",
        "1,a b,1",
    ),
    3: ("a,b a,b a,b", "a a a", "a,b . .", "a,b b b"),
}
SIZES = (
    "n",
    "n//2",
    "n-1",
    "n+1",
    "2*(n//2)",
    "max(n-3,0)",
    "min(n,3)",
    "min(n-1,1)",
    "max(4-n,0)",
    "n%3",
    "2",
    "3",
)
DTYPES = "float64 float64 float64 float32 int32 int64 bool complex128 uint8 int8 int16 uint16 string".split()  # noqa: SIM905
NUMBERS = ("float64", "float32", "int32", "int64", "uint8", "int8", "complex128")
FLOATS = ("float64", "float32", "complex128")


class NoCall(Exception):
    """What was drawn is no call of the operation."""


@functools.cache
def read_templates(file: str) -> dict[str, list[list[str]]]:
    """The lines of a file such as `operation_calls.txt`, split into words, by operation."""
    found = collections.defaultdict(list)
    for line in Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            operation, *words = line.split()
            found[operation].append(words)
    return found


OF_BITS = "Bitcast", "keras.view"
"""Operations that see the bits of a number, with which the roundings of a sum in another order are no small difference."""


def definition(operation: str) -> Any:
    """The definition of a raw operation."""
    return op_def_registry.get(operation)


@functools.cache
def public_names(operation: str) -> dict[str, str]:
    """The names of a raw operation's tensors in Python, by those of its definition."""
    wanted = inspect.signature(getattr(tf.raw_ops, operation)).parameters
    names = [each.name for each in definition(operation).input_arg]
    attributes = {each.name for each in definition(operation).attr}
    others = iter(name for name in wanted if name not in names and name not in attributes and name != "name")
    return {name: name if name in wanted else next(others) for name in names}


class Drawing:
    """One call that is being drawn. `stream`: where choices come from; `attrs`: the attributes of the operation."""

    def __init__(self, operation: str, stream: random.Random, attrs: Any = None) -> None:
        self.operation, self.stream = operation, stream
        self.definition = definition(operation) if attrs is None else None
        self.attrs = {each.name: each for each in (self.definition.attr if attrs is None else attrs)}
        self.types: dict[str, str] = {}
        self.letters: dict[str, Any] = {}
        self.style = stream.choice(["plain"] * 7 + ["special", "extreme", "zeros"])

    def step(self) -> Step:
        """The call."""
        lines = read_templates("operation_calls.txt").get(self.operation) or [self._generic()]
        words = self.stream.choice(lines)
        self._choose_letters(words)
        given, values = {}, {}
        for word in words:
            name, _, text = word.partition(":=" if ":=" in word else "=")
            if ":=" not in word:
                given[name] = text
            elif self._is_type_of_inputs(name):
                self.types[name] = ast.literal_eval(self.stream.choice(text.split("|")))
            else:
                values[name] = ast.literal_eval(self.stream.choice(text.split("|")))
        arguments = []
        for each in self.definition.input_arg:
            name = public_names(self.operation)[each.name]
            text = given.get(name, given.get(each.name))
            if text is None:
                raise NoCall(f"{self.operation} has no {name} in {words}")
            arguments.append((name, self._tensors(text, each)))
        for name, attr in self.attrs.items():
            if name not in values and not self._is_type_of_inputs(name) and name != self._number_of(name):
                self._choose_attribute(name, attr, values)
        return Step(self.operation, tuple(arguments), self._frozen(values))

    @staticmethod
    def _frozen(values: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        """Attributes that can be hashed."""
        return tuple((name, _as_tuple(value)) for name, value in values.items())

    def _generic(self) -> list[str]:
        inputs = self.definition.input_arg
        if not inputs or any(each.number_attr or each.type_list_attr for each in inputs):
            raise NoCall(f"{self.operation} takes lists")
        shapes = self.stream.choice(
            GENERIC.get(len(inputs), ("a,b " * len(inputs), "a " * len(inputs)))
        ).split()
        return [f"{each.name}={shape}" for each, shape in zip(inputs, shapes)]

    def _choose_letters(self, words: list[str]) -> None:
        """Chooses which extents are the number of samples; the others are small."""
        tensors = " ".join(word.split("=", 1)[1].split(":")[0] for word in words if ":=" not in word)
        found = sorted({letter for letter in re.findall(r"\b[a-e]\b", tensors)})
        self.letters = {letter: self.stream.choice([1, 2, 2, 3, 3, 4]) for letter in found}
        if not found or self.stream.random() < 0.07:
            return  # only sums over samples, or sizes
        first = found[0] if self.stream.random() < 0.55 else self.stream.choice(found)
        self.letters[first] = self.stream.choice(["n"] * 9 + ["2n", "n2"])
        if len(found) > 1 and self.stream.random() < 0.12:
            self.letters[self.stream.choice(found)] = "n"

    def _tensors(self, text: str, each: Any) -> Any:
        if text.startswith("("):
            return tuple(self._tensor(one, each, n) for n, one in enumerate(text.strip("()").split(";")))
        return self._tensor(text, each, 0)

    def _tensor(self, text: str, each: Any, position: int) -> Argument:
        if text[0] in "[<":
            return self._sizes(text, each)
        shape, _, more = text.partition(":")
        values, _, wanted = more.replace("_", " ").partition(":")
        dtype = wanted or self._dtype(each, position)
        extents = tuple(map(self._extent, [] if shape == "." else shape.split(",")))
        number = self.stream.randrange(10**6)
        values = values or self._values(dtype)
        if values == "normal" and dtype not in FLOATS:
            values = "int -4 5"
        if any(isinstance(extent, str) for extent in extents):
            return Argument("batch", extents, dtype, values, number)
        source = "constant"
        if not values.startswith(("sorted", "unit", "zeros")) and self.stream.random() < 0.5:
            source = self.stream.choice(["sum", "mean"] if dtype in FLOATS else ["sum", "max"])
            if dtype in ("bool", "string") or values.startswith("int") or self.operation in OF_BITS:
                source = "constant"
            if dtype.startswith("complex") and source == "max":
                source = "sum"
        return Argument(source, extents, dtype, values, number)

    def _sizes(self, text: str, each: Any) -> Argument:
        body, dtype, shape = (*text.split(":"), "", "")[:3]
        dtype = dtype or (self._dtype(each, 0) if each is not None else "int32")
        body = re.sub(r"\?", lambda _: f"({self.stream.choice(SIZES)})", body)
        body = re.sub(r"\b[a-e]\b", lambda letter: f"({self._size(letter[0])})", body)
        if text[0] == "<":
            return Argument("sizes", body[1:-1], dtype, "")
        elements = tuple(_simple(one) for one in _split(body[1:-1]))
        return Argument("sizes", elements, dtype, shape.replace(",", " "))

    def _size(self, letter: str) -> str:
        found = self.letters.setdefault(letter, self.stream.choice([1, 2, 3]))
        return "2*n" if found in ("2n", "n2") else str(found)

    def _extent(self, text: str) -> Any:
        if text in self.letters:
            return self.letters[text]
        if text.startswith("2*") and self.letters.get(text[2:]) == "n":
            return "2n"
        if any(isinstance(self.letters.get(each), str) for each in re.findall("[a-e]", text)):
            raise NoCall(f"{text} has no number of samples")
        return eval(text, {}, self.letters)

    def _dtype(self, each: Any, position: int) -> str:
        if each.type_attr:
            if each.type_attr not in self.types:
                self.types[each.type_attr] = self._allowed(self.attrs[each.type_attr])
            return self.types[each.type_attr]
        if each.type_list_attr:
            return self.stream.choice(["float64", "int32", "float64"])
        return tf.as_dtype(each.type).name

    def _allowed(self, attr: Any) -> str:
        allowed = [tf.as_dtype(kind).name for kind in attr.allowed_values.list.type]
        wanted = [kind for kind in DTYPES if not allowed or kind in allowed]
        if not wanted:
            raise NoCall(f"{self.operation} takes {allowed}")
        return wanted[0] if self.stream.random() < 0.4 else self.stream.choice(wanted)

    def _values(self, dtype: str) -> str:
        if dtype == "bool":
            return "int 0 2"
        if dtype == "string":
            return "int 0 8"
        if dtype in FLOATS or dtype.startswith(("float", "bfloat", "complex")):
            if dtype.startswith(
                "complex"
            ):  # TensorFlow's vectors of quotients with inf differ from single ones
                return {"zeros": "zeros"}.get(self.style, "normal")
            return {"special": "special", "zeros": "zeros"}.get(self.style, "normal")
        if self.style == "extreme":
            return "extreme 0 6"
        return "int 0 9" if dtype.startswith("u") else "int -4 5"

    def _is_type_of_inputs(self, name: str) -> bool:
        return any(name in (each.type_attr, each.type_list_attr) for each in self.definition.input_arg)

    def _number_of(self, name: str) -> str | None:
        return next((name for each in self.definition.input_arg if each.number_attr == name), None)

    def _choose_attribute(self, name: str, attr: Any, values: dict[str, Any]) -> None:
        has_default = attr.HasField("default_value")
        if attr.type == "bool" and (not has_default or self.stream.random() < 0.5):
            values[name] = self.stream.random() < 0.5
        elif has_default:
            return
        elif attr.type == "type":
            values[name] = self._allowed(attr)
        elif attr.type == "string" and attr.allowed_values.list.s:
            values[name] = self.stream.choice(attr.allowed_values.list.s).decode()
        elif attr.type == "int":
            values[name] = max(self.stream.randint(0, 3), attr.minimum if attr.has_minimum else 0)
        elif attr.type == "float":
            values[name] = self.stream.choice([0.5, 0.1, 2.0])
        else:
            raise NoCall(f"{self.operation} needs {name}")


def _split(text: str) -> list[str]:
    """The parts between commas outside of parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value


def _simple(text: str) -> Any:
    return text if "n" in text else int(eval(text))


def draw_program(first: Step, stream: random.Random, operations: list[str]) -> Case:
    """A program that begins with a call: maybe more operations, what is made of the result, and gradients."""
    steps = [first]
    for number in range(stream.choice([0, 0, 0, 1, 1, 2])):
        steps.append(_with_result(Drawing(stream.choice(operations), stream).step(), number, stream))
    endings = tuple(stream.sample(ENDINGS, stream.choice([0, 1, 1, 2])))
    return Case(tuple(steps), endings, stream.choice(["sum", "square", ""]))


def _with_result(step: Step, number: int, stream: random.Random) -> Step:
    """The call, with the result of an earlier step as one of its tensors."""
    places = [
        n
        for n, (_, each) in enumerate(step.arguments)
        if not isinstance(each, tuple) and each.source != "sizes"
    ]
    if not places:
        raise NoCall(f"{step.operation} takes no results")
    place = stream.choice(places[:2])
    name, _ = step.arguments[place]
    given = Argument(f"step {number}", ())
    arguments = (*step.arguments[:place], (name, given), *step.arguments[place + 1 :])
    return Step(step.operation, arguments, step.attributes)
