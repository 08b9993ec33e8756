"""Arrays for the hand-written programs, and their comparison: `python -m tests.partition.hand_written [name ...]`."""

from __future__ import annotations

import collections
import inspect
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "helpers")]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from cheap_graphs import as_for_users
from partition.differential import Program, examine_all
from partition.extent_programs import EXTENTS, VIEWS
from partition.number_programs import NUMBERS
from partition.size_programs import SIZES

ALL = {
    **{f"size: {name}": fn for name, fn in SIZES.items()},
    **{f"extent: {name}": fn for name, fn in EXTENTS.items()},
    **{f"views: {name}": fn for name, fn in VIEWS.items()},
    **{f"number: {name}": fn for name, fn in NUMBERS.items()},
}
BATCH_SIZES = 1, 2, 3, 4, 5, 7, 9


def _special(random, n):
    found = random.normal(size=(n, 4)).round(3)
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    return np.where(random.random((n, 4)) < 0.12, random.choice(values, (n, 4)), found)


ARRAYS = {
    "x": lambda random, n: random.normal(size=(n, 4)),
    "x2": lambda random, n: random.normal(size=(2 * n, 4)),
    "x3": lambda random, n: random.normal(size=(3 * n, 4)),
    "s": lambda random, n: random.normal(size=(n, 5, 3)),
    "y": lambda random, n: random.integers(0, 3, n).astype("int32"),
    "k": lambda random, n: random.integers(-(2**63), 2**63 - 1, (n, 3)),
    "m": lambda random, n: random.random(n) < 0.5,
    "none": lambda random, n: np.zeros((n, 4), bool),
    "zero": lambda random, n: np.zeros((n, 4)),
    "w": _special,
    "c": lambda random, n: random.normal(size=(n, 3)) + 1j * random.normal(size=(n, 3)),
    "t": lambda random, n: np.array([f"w{i}-{i % 2}" for i in random.integers(0, 5, n)], object),
}


def batch_of(fn, size: int) -> list[np.ndarray]:
    """The arrays of a program for so many samples."""
    names = [name for name in inspect.signature(fn).parameters if name in ARRAYS]
    return [ARRAYS[name](np.random.default_rng([size, *name.encode()]), size) for name in names]


def program(name: str, sizes: tuple[int, ...] = BATCH_SIZES) -> Program:
    """A program and its batches."""
    fn = ALL[name]
    return Program(fn, {size: batch_of(fn, size) for size in sizes})


def main(words: list[str]) -> int:
    """Prints what becomes of the programs, or of those whose names contain one of the words."""
    counts = collections.Counter()
    for name in ALL:
        if not words or any(word in name for word in words):
            (found,) = examine_all([program(name)])
            counts[found.kind] += 1
            if found.kind != "right":
                print(f"{found.kind:12} {name}: {found.samples or ''} {found.details}", flush=True)
    print(", ".join(f"{number} {kind}" for kind, number in counts.items()))
    return int(counts["wrong"] + counts["error"] > 0)


if __name__ == "__main__":
    as_for_users(False)
    sys.exit(main(sys.argv[1:]))
