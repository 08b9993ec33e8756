"""Compares the CNN's step time and weights under settings of a user: `python -m benchmarks.cnn_settings [ROUNDS]`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

from benchmarks.tables import publish, spread

STEPS, EPOCHS = 200, 4


class Setting(NamedTuple):
    """The differences from the default.

    Attributes:
        environment: environment variables of the process.
        policy: dtype policy.
        jit_compile: argument of `compile`.
        layout: image data format.
        threads: (intra-op, inter-op) threads of `tf.config.threading`; None: TensorFlow's defaults.
    """

    environment: dict[str, str] = {}
    policy: str = "float32"
    jit_compile: bool = False
    layout: str = "channels_last"
    threads: tuple[int, int] | None = None


SETTINGS = {
    "default": Setting(),
    "`TF_ENABLE_ONEDNN_OPTS=0`": Setting({"TF_ENABLE_ONEDNN_OPTS": "0"}),
    "`channels_first`": Setting(layout="channels_first"),
    "`jit_compile=True`": Setting(jit_compile=True),
    '`"mixed_bfloat16"`': Setting(policy="mixed_bfloat16"),
    "one operation at a time, on two threads": Setting(threads=(2, 1)),
    "two operations at once, on one thread each": Setting(threads=(1, 2)),
}


def main(rounds: int = 3) -> None:
    """Prints the step time of `fit` from arrays, its ratio to the default in the same round, and the distance of weights.

    Each setting has its own process, because TensorFlow reads its environment once. The settings take turns in every round.
    If TensorFlow has no kernel for a setting, the table says so.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SETTINGS}
    for turn in range(rounds):
        for name in list(SETTINGS)[:: 1 if turn % 2 else -1]:
            found[name].append(_child(name))
            print(name, found[name][-1]["us"], file=sys.stderr, flush=True)
    publish(
        "cnn_settings",
        ["setting", "us a step", "ratio", "weights after 20 steps, relative distance"],
        [_row(name, results, found["default"]) for name, results in found.items()],
    )


def _row(name: str, results: list[dict[str, Any]], default: list[dict[str, Any]]) -> list[str]:
    if any(result["us"] is None for result in results):
        return [name, "no kernel", "", ""]
    times = spread([result["us"] for result in results], 1, "{:,.0f}")
    ratio = statistics.median(a["us"] / b["us"] for a, b in zip(results, default))
    base = default[0]["weights"]
    scale = max(map(abs, base))
    distance = max(abs(a - b) for a, b in zip(results[0]["weights"], base)) / scale
    return [name, times, f"{ratio:.2f}", f"{distance:.0e}" if distance else "0"]


def _child(name: str) -> dict[str, Any]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **SETTINGS[name].environment}
    command = [sys.executable, "-m", "benchmarks.cnn_settings", "--setting", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        print(done.stderr[-400:], file=sys.stderr)
        return {"us": None, "weights": []}
    return json.loads(done.stdout.splitlines()[-1])


def _measure(setting: Setting) -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    import unisono
    from benchmarks.contestants import keras_models
    from benchmarks.contestants.task import BATCH, Task, arrays

    if setting.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(setting.threads[0])
        tf.config.threading.set_inter_op_parallelism_threads(setting.threads[1])
    unisono.mixed_precision.set_global_policy(setting.policy)
    keras.config.set_image_data_format(setting.layout)
    keras.utils.set_random_seed(1)
    model: Any = keras_models.build(keras, Task("cnn"), unisono.Model)
    model.compile(**keras_models.compile_arguments(keras), jit_compile=setting.jit_compile)
    x, y = arrays("cnn", STEPS)
    if setting.layout == "channels_first":
        x = x.transpose(0, 3, 1, 2)
    model.fit(x[: 20 * BATCH], y[: 20 * BATCH], batch_size=BATCH, shuffle=False, verbose=0)
    weights = np.concatenate([np.ravel(each)[:50] for each in model.get_weights()])
    seconds = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, verbose=0)
        seconds.append(time.perf_counter() - began)
    return {"us": 1e6 * min(seconds[1:]) / STEPS, "weights": weights.astype(float).tolist()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--setting"]:
        print(json.dumps(_measure(SETTINGS[sys.argv[2]])))
    else:
        main(*map(int, sys.argv[1:]))
