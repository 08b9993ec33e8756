"""Draws calls of `keras.ops`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import random
from typing import Any

import keras
from partition.drawing import GENERIC, Drawing, NoCall, read_templates
from partition.drawn_case import Argument, Step

_NO_TENSORS = """
    associative_scan cond custom_gradient fori_loop jvp map scan switch vectorize vectorized_map while_loop dtype
    convert_to_numpy is_tensor ndim bartlett blackman hamming hanning kaiser empty empty_like eig
"""
"""Functions that take functions, or neither tensors nor sizes; `empty` has any numbers."""

KERAS_OPERATIONS = [
    f"keras.{name}"
    for name in dir(keras.ops)
    if inspect.isfunction(getattr(keras.ops, name)) and name not in _NO_TENSORS.split()
]
_TENSORS = ("x", "x1", "x2", "y", "a", "b", "variable")
_DTYPES = ["float64"] * 6 + ["float32", "int32", "int32", "int64", "bool", "uint8", "complex128"]


class KerasDrawing(Drawing):
    """One call of a function of `keras.ops`."""

    def __init__(self, operation: str, stream: random.Random) -> None:
        name = operation.removeprefix("keras.")
        super().__init__(operation, stream, ())
        self.lines = read_templates("keras_calls.txt").get(name)
        self.parameters = inspect.signature(getattr(keras.ops, name)).parameters
        self.kind = stream.choice(_DTYPES)

    def step(self) -> Step:
        """The call."""
        words = self.stream.choice(self.lines) if self.lines else self._without_line()
        self._choose_letters(words)
        arguments, values = [], {}
        for word in words:
            name, _, text = word.partition(":=" if ":=" in word else "=")
            if ":=" in word:
                values[name] = ast.literal_eval(self.stream.choice(text.split("|")))
            else:
                arguments.append((name, self._tensors(text, None)))
        return Step(self.operation, tuple(arguments), self._frozen(values))

    def _without_line(self) -> list[str]:
        given = [name for name, each in self.parameters.items() if each.default is each.empty]
        if not given or any(name not in _TENSORS for name in given):
            raise NoCall(f"{self.operation} needs {given}")
        shapes = self.stream.choice(GENERIC[len(given)]).split()
        words = [f"{name}={shape}" for name, shape in zip(given, shapes)]
        if "axis" in self.parameters:
            words.append("axis:=None|0|1|-1")
        if "keepdims" in self.parameters:
            words.append("keepdims:=True|False")
        return words

    def _sizes(self, text: str, each: Any) -> Argument:
        found = super()._sizes(text, each)
        return dataclasses.replace(found, values="list") if text[0] == "[" else found

    def _dtype(self, each: Any, position: int) -> str:
        return self.kind
