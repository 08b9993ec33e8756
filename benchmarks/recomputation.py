"""What computing activations again saves and costs: a stack of transformer blocks with and without `keras.RematScope`.

    python -m benchmarks.recomputation [--rounds 5]

Memory is the peak of a process during steps, less what it held after steps of one row: activations and gradients. Each way
has a process of its own, with allocators that keep nothing. Time is that of a step in a third process, in which both ways
take turns; the ratio is the median of the rounds. On a CPU, in the plain graph (XLA decides for itself what it keeps).
"""

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

BLOCKS, WIDTH, HEADS, TOKENS, ROWS, STEPS = 6, 256, 4, 128, 32, 2
WAYS = {"none": "no rematerialization", "blocks": "blocks are rematerialized"}
MIB = 2**20


def main() -> None:
    """Prints a table; with `--child` it is one process."""
    options = _options()
    if options.child:
        found = _times(options.rounds) if options.child == "time" else _peak(options.child)
        print(json.dumps(found), flush=True)
        return
    seconds = _run("time", options.rounds, {})
    kept = statistics.median(seconds["none"])
    rows = []
    for way, words in WAYS.items():
        size = _run(way, options.rounds, GIVES_BACK)
        ratio = statistics.median(a / b for a, b in zip(seconds[way], seconds["none"]))
        rows.append([words, f"{size / MIB:.0f} MiB", f"{1e3 * kept * ratio:.0f} ms", f"{ratio:.2f}"])
    publish("recomputation", ["", "activations and gradients", "a step", "of its time"], rows)


def _run(child: str, rounds: int, env: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "benchmarks.recomputation", "--child", child, "--rounds", str(rounds)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", **env}
    out = subprocess.run(
        command, env=quiet, stdout=subprocess.PIPE, text=True, timeout=600, check=True
    ).stdout
    return json.loads(out.splitlines()[-1])


def _made(way: str) -> Any:
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
    with keras.RematScope("full") if way == "blocks" else contextlib.nullcontext():
        for _ in range(BLOCKS):
            hidden = Block()(hidden)
    model = unisono.Model(inputs, keras.layers.Dense(WIDTH)(hidden))
    model.compile(unisono.optimizers.Adam(1e-4), "mse", jit_compile=False, steps_per_execution=1)
    return model


def _fit(model: Any, rows: int) -> float:
    """Seconds of a step, of some with that many rows."""
    import numpy as np

    x = np.zeros((STEPS * rows, TOKENS, WIDTH), "float32")
    began = time.monotonic()
    model.fit(x, x, batch_size=rows, shuffle=False, verbose=0)
    return (time.monotonic() - began) / STEPS


def _peak(way: str) -> int:
    model = _made(way)
    _fit(model, 1)
    before = memory("VmRSS")
    _fit(model, ROWS)
    forget_peak()
    _fit(model, ROWS)
    return memory("VmHWM") - before


def _times(rounds: int) -> dict[str, list[float]]:
    models = {way: _made(way) for way in WAYS}
    for model in models.values():
        _fit(model, ROWS)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, model in models.items():
            found[way].append(_fit(model, ROWS))
    return found


def _options() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", choices=("time", *WAYS), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
