"""A change of the register switched off: `changes_off.py <name> on|off` runs the program that needs it.

Each program returns (what it found, what is right), or raises an error; the table is filled by `breaks`.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

import unisono.distribute
from unisono.compat.register import ADDED, REPLACED, WRAPPED, Changed

DIFFERS = "Not equal to tolerance"
PROGRAMS: dict[str, tuple[Callable[[], Any], str]] = {}
FILES = ("change_programs", "placed_programs", "step_programs")


def breaks(*names: str, says: str = DIFFERS) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Let a function be the program of these changes, without each of which its error says so."""

    def register(program: Callable[[], Any]) -> Callable[[], Any]:
        for name in names:
            assert name not in PROGRAMS
            PROGRAMS[name] = program, says
        return program

    return register


def changes() -> dict[str, Changed]:
    """Return all changes of the register, by names that no version of Keras or TensorFlow changes."""
    return {f"{each.place.rpartition(':')[2]}.{each.name}": each for each in (*REPLACED, *WRAPPED, *ADDED)}


def switch_off(change: Changed) -> None:
    """Undo one change, and let nothing make it again."""
    if change in REPLACED:
        vars(change).update(install=lambda: None, restore=lambda: None)
    elif change in WRAPPED:
        found = vars(change.owner).get(change.name)  # None: nothing has wrapped what the class inherits
        while hasattr(found, "__unisono_original__"):
            found = found.__unisono_original__
            setattr(change.owner, change.name, found)
        for cell in getattr(found, "__closure__", None) or ():  # of a method that Keras has decorated
            while hasattr(cell.cell_contents, "__unisono_original__"):
                cell.cell_contents = cell.cell_contents.__unisono_original__
        vars(change).update(find=_refuse)
    else:
        added = vars(change.owner).get(change.name)
        if added is not None and added.__module__.startswith("unisono."):
            delattr(change.owner, change.name)
        vars(change).update(owner=types.SimpleNamespace())


def _refuse() -> Any:
    raise ImportError("switched off")


def main(name: str, how: str) -> None:
    """Run the program of a change, with the change or without."""
    own = importlib.import_module("changes_off")
    for each in FILES:
        importlib.import_module(each)
    unisono.distribute.simulate_devices(4)
    if how == "off":
        switch_off(changes()[name])
    found = own.PROGRAMS[name][0]()
    if found is not None:
        for number, (value, right) in enumerate(zip(*found, strict=True)):
            np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6, err_msg=str(number))
    print("right")


if __name__ == "__main__":
    main(*sys.argv[1:])
