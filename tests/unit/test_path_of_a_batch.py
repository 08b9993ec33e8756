"""The call path from `Model.fit` to the update rule stays short: frames and files, counted on the simplest program."""

from __future__ import annotations

import os
import pathlib
import traceback

import keras
import numpy as np

import unisono

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_FRAMES, MOST_FILES = 16, 7
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
