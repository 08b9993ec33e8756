"""The paths through the library stay short: from `Model.fit` to the update rule, of the arguments, and of a batch."""

from __future__ import annotations

import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import unisono
from unisono.trainer.inputs import Chunk
from unisono.trainer.run.fit_inputs import FitArguments
from unisono.trainer.run.loops.compiled_calls import CompiledCall

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_FRAMES, MOST_FILES = 16, 7
MOST_RETURNS = 10
ROOMS = ("unisono", "trainer", "callbacks", "state", "mixed_precision", "optimizers", "distribute", "compat")
OTHER_WAYS = ("parameter_servers", "pipeline", "xla", "worker")


class Witness(unisono.optimizers.SGD):
    """Records the callers of the update rule."""

    ways: list[list[tuple[str, str]]] = []

    def update_step(self, gradient, variable, learning_rate):
        stack = ((os.path.realpath(frame.filename), frame.name) for frame in traceback.extract_stack())
        inside = [(os.path.relpath(path, ROOT), name) for path, name in stack]
        self.ways.append([(path, name) for path, name in inside if path.split(os.sep)[0] in ROOMS])
        super().update_step(gradient, variable, learning_rate)


def test_way_from_fit_to_the_update_rule_is_short_and_straight():
    model = unisono.Sequential([keras.layers.Dense(1)])
    model.compile(Witness(0.1), "mse")
    x = np.ones((64, 4), "float32")
    model.fit(x, x[:, :1], verbose=0)
    assert Witness.ways
    for way in Witness.ways:
        files = dict.fromkeys(path for path, _ in way)
        assert way[0] == ("trainer/trainer.py", "fit") and way[-1][1] == "_backend_update_step"
        assert len(way) <= MOST_FRAMES, way
        assert len(files) <= MOST_FILES, list(files)
        assert not [path for path in files if any(word in path for word in OTHER_WAYS)]


def files_visited(carries: Callable[[Any], bool], run: Callable[[], Any]) -> list[str]:
    """The files whose functions are called with an argument that `carries` what is followed, in order."""
    visited: list[str] = []

    def follow(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not any(f"/{room}/" in code.co_filename for room in ROOMS):
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(carries(frame.f_locals.get(name)) for name in arguments):
            path = os.path.relpath(os.path.realpath(code.co_filename), ROOT)
            if path.split(os.sep)[0] in ROOMS and visited[-1:] != [path]:
                visited.append(path)

    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        run()
    finally:
        sys.setprofile(before)
    return visited


def test_the_arguments_of_fit_and_a_batch_return_seldom_to_a_file_that_they_have_left():
    model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
    followed = {
        "arguments": lambda value: value is x or value is y or isinstance(value, FitArguments),
        "batch": lambda value: isinstance(value, Chunk | CompiledCall),
    }
    for name, carries in followed.items():
        visited = files_visited(carries, lambda: model.fit(x, y, batch_size=64, verbose=0))
        assert len(visited) > 5, name
        assert len(visited) - len(set(visited)) <= MOST_RETURNS, (name, visited)
