"""What a class that derives from `unisono.callbacks.Callback` gets, and that other classes may have the same names."""

from __future__ import annotations

import ast
import pathlib

import fsspec
import keras
import numpy as np
import pytest

import unisono
from unisono.callbacks.callback import Callback, find_named_generators, hook, setting

ROOT = pathlib.Path(__file__).parents[2]
NAMES = {name for name in vars(Callback) if not name.startswith("__")}
X = np.ones((8, 1), "float32")


class Notes(unisono.callbacks.Callback):
    """Writes a line for each epoch."""

    output_paths = {"path": False}
    runs_last = True

    def __init__(self, path, events):
        super().__init__()
        self.path, self.events, self.generators = path, events, [np.random.default_rng(1)]

    def on_train_begin(self, logs=None):
        self.events.append("last")

    def on_epoch_end(self, epoch, logs=None):
        with open(self.path, "a") as file:
            file.write(f"{epoch}\n")

    def on_fit_exit(self):
        self.events.append("exit")


class OfKeras(keras.callbacks.Callback):
    """Has names of ours, two of which Keras' users may use for anything."""

    output_paths, generators = ["no path"], ["no generator"]

    def __init__(self, events):
        super().__init__()
        self.events = events

    def on_train_begin(self, logs=None):
        self.events.append("first")

    def on_fit_exit(self):
        self.events.append("exit of Keras' class")


def trained(*callbacks):
    model = unisono.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, X, epochs=2, verbose=0, callbacks=list(callbacks))


def test_callback_writes_to_a_store_in_its_turn_and_releases_at_the_end():
    events = []
    notes = Notes("memory://own-callback/a.txt", events)
    trained(notes, OfKeras(events))
    assert (
        fsspec.filesystem("memory").cat("/own-callback/a.txt") == b"0\n1\n"
        and notes.path == "memory://own-callback/a.txt"
    )
    assert events == ["first", "last", "exit of Keras' class", "exit"]
    assert find_named_generators([OfKeras([]), notes]) == {"generators[0]": notes.generators[0]}


def test_path_of_a_callback_is_checked_before_the_first_step(tmp_path):
    events = []
    (tmp_path / "file").write_text("")
    with pytest.raises(
        unisono.callbacks.SaveError, match=r"`path` of `Notes` cannot be created, because .*file is a file"
    ):
        trained(Notes(str(tmp_path / "file" / "a.txt"), events))
    assert not events


def test_defaults_count_as_undefined():
    plain, other = Callback(), keras.callbacks.Callback()
    hooks = [name for name in NAMES if callable(getattr(Callback, name))]
    assert len(hooks) == 6 and all(hook(each, name) is None for each in (plain, other) for name in hooks)
    plain.on_fit_exit = print
    assert hook(plain, "on_fit_exit") is print
    assert hook(Notes("a", []), "on_fit_exit").__func__ is Notes.on_fit_exit
    assert setting(other, "runs_last") is False and setting(type(other), "only_reads_logs") is False


@pytest.mark.long
def test_names_of_callbacks_are_looked_for_in_one_file_only():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("callbacks", "distribute", "state", "trainer")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "callback.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        for argument in node.args[1:2]
        if isinstance(argument, ast.Constant) and argument.value in NAMES
    ]
    assert not found, found
