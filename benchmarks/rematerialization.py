"""Measures what rematerialization saves and costs: transformer blocks with and without `keras.RematScope`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from .sharded_state import GIVES_BACK, forget_peak, memory
from .tables import publish

BLOCKS, WIDTH, HEADS, TOKENS, SAMPLES, STEPS = 6, 256, 4, 128, 32, 2
MODELS = {"none": "no rematerialization", "blocks": "blocks are rematerialized"}
MIB = 2**20


def main() -> None:
    """Prints a table; `--child` runs one process of it.

        python -m benchmarks.rematerialization [--rounds 5]

    Memory is the peak of a process during steps, minus its memory after steps with one sample: activations and
    gradients. Each model has its own process, with allocators that return freed memory. In a third process, both
    models take turns, and the table has the median ratio of their step times. All run on a CPU in the plain graph,
    because XLA decides for itself which activations it keeps.
    """
    options = _options()
    if options.child:
        found = _times(options.rounds) if options.child == "time" else _peak(options.child)
        print(json.dumps(found), flush=True)
        return
    seconds = _run("time", options.rounds, {})
    kept = statistics.median(seconds["none"])
    rows = []
    for name, label in MODELS.items():
        size = _run(name, options.rounds, GIVES_BACK)
        ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds["none"]))
        rows.append([label, f"{size / MIB:.0f} MiB", f"{1e3 * kept * ratio:.0f} ms", f"{ratio:.2f}"])
    publish("rematerialization", ["", "activations and gradients", "a step", "of its time"], rows)


def _run(child: str, rounds: int, env: dict[str, str]) -> Any:
    command = [
        sys.executable,
        "-m",
        "benchmarks.rematerialization",
        "--child",
        child,
        "--rounds",
        str(rounds),
    ]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", **env}
    out = subprocess.run(
        command, env=quiet, stdout=subprocess.PIPE, text=True, timeout=600, check=True
    ).stdout
    return json.loads(out.splitlines()[-1])


def _made(name: str) -> Any:
    import keras

    import unisono

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
            self.attention = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
            self.wide = keras.layers.Dense(4 * WIDTH, "gelu")
            self.narrow = keras.layers.Dense(WIDTH)

        def call(self, x: Any) -> Any:
            hidden = self.norms[0](x)
            x = x + self.attention(hidden, hidden, use_causal_mask=True)
            return x + self.narrow(self.wide(self.norms[1](x)))

    inputs = hidden = keras.Input((TOKENS, WIDTH))
    with keras.RematScope("full") if name == "blocks" else contextlib.nullcontext():
        for _ in range(BLOCKS):
            hidden = Block()(hidden)
    model = unisono.Model(inputs, keras.layers.Dense(WIDTH)(hidden))
    model.compile(unisono.optimizers.Adam(1e-4), "mse", jit_compile=False, steps_per_execution=1)
    return model


def _fit(model: Any, samples: int) -> float:
    """Seconds per step with `samples` samples."""
    import numpy as np

    x = np.zeros((STEPS * samples, TOKENS, WIDTH), "float32")
    began = time.monotonic()
    model.fit(x, x, batch_size=samples, shuffle=False, verbose=0)
    return (time.monotonic() - began) / STEPS


def _peak(name: str) -> int:
    model = _made(name)
    _fit(model, 1)
    before = memory("VmRSS")
    _fit(model, SAMPLES)
    forget_peak()
    _fit(model, SAMPLES)
    return memory("VmHWM") - before


def _times(rounds: int) -> dict[str, list[float]]:
    models = {name: _made(name) for name in MODELS}
    for model in models.values():
        _fit(model, SAMPLES)
    found: dict[str, list[float]] = {name: [] for name in MODELS}
    for _ in range(rounds):
        for name, model in models.items():
            found[name].append(_fit(model, SAMPLES))
    return found


def _options() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    parser.add_argument("--child", choices=("time", *MODELS), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
