"""Measures callbacks that read the logs of every step: called for each step, or once for many steps."""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

import unisono
from benchmarks.contestants import keras_models
from benchmarks.contestants.task import BATCH, Task, arrays
from benchmarks.tables import publish, spread

STEPS = 3000


class EveryStep(keras.callbacks.Callback):
    """Reads the logs of every step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Adds up the losses."""
        self.total = getattr(self, "total", 0.0) + logs["loss"]


class OnlyReads(EveryStep):
    """The same, declared as a callback that only reads logs."""

    only_reads_logs = True


class Vectors(keras.callbacks.Callback):
    """Reads the logs of many steps as vectors."""

    def on_train_steps_end(self, first: int, logs: Any) -> None:
        """Adds up the losses."""
        self.total = getattr(self, "total", 0.0) + logs["loss"].sum()


NOTHING, EVERY_STEP = "no callback", "a callback with `on_train_batch_end`"
PROGRAMS: dict[str, tuple[Any, int]] = {
    NOTHING: (None, STEPS),
    "`on_train_steps_end`": (Vectors, STEPS),
    "`on_train_batch_end` with `only_reads_logs`": (OnlyReads, STEPS),
    "ten of these": ((OnlyReads,) * 10, STEPS),
    "`keras.callbacks.TerminateOnNaN`": (keras.callbacks.TerminateOnNaN, STEPS),
    EVERY_STEP: (EveryStep, STEPS // 5),
}


def seconds_a_step(model: Any, kinds: Any, steps: int) -> float:
    """Seconds per step of one epoch."""
    x, y = arrays("mlp", steps)
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    callbacks = [kind() for kind in kinds if kind is not None]
    began = time.perf_counter()
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=callbacks)
    return (time.perf_counter() - began) / steps


def main(rounds: int = 9) -> None:
    """Prints a table: `python -m benchmarks.step_logs [ROUNDS]`.

    Each program trains the MLP of the speed comparison from arrays, in the plain graph and with the whole loop under
    XLA. The rounds alternate the programs. The table has the median and quartiles of the time per step, and the
    median of its ratio to the program without a callback in the same round.
    """
    models = {}
    for name in PROGRAMS:
        for jit_compile in (False, True):
            keras.utils.set_random_seed(0)
            model = keras_models.build(keras, Task("mlp"), unisono.Model)
            model.compile(**keras_models.compile_arguments(keras), jit_compile=jit_compile)
            models[name, jit_compile] = model
            for _ in range(2):  # compiles, and finds the length of compiled calls
                seconds_a_step(model, *PROGRAMS[name])
    times: dict[Any, list[float]] = {key: [] for key in models}
    keys = list(models)
    for turn in range(rounds):
        first = turn % len(keys)
        for key in keys[first:] + keys[:first]:
            times[key].append(seconds_a_step(models[key], *PROGRAMS[key[0]]))
    rows = []
    for name in PROGRAMS:
        row = [name]
        for jit_compile in (False, True):
            ratios = [a / b for a, b in zip(times[name, jit_compile], times[NOTHING, jit_compile])]
            row += [spread(times[name, jit_compile], 1e6, "{:.0f}"), f"{statistics.median(ratios):.2f}"]
        rows.append(row)
    head = ["MLP, batch 32", "graph, us a step", "ratio", "under XLA, us a step", "ratio"]
    publish("step_logs", head, rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
