"""Compares the estimate of `unisono.model_memory` with the measured growth of a process in its first step."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

MIB = 2**20
TIMEOUT = 900


def mlp(keras: Any) -> Any:
    inputs = h = keras.Input((1024,))
    for _ in range(8):
        h = keras.layers.Dense(1024, "relu")(h)
    return inputs, keras.layers.Dense(10)(h)


def cnn(keras: Any) -> Any:
    inputs = h = keras.Input((32, 32, 3))
    for _ in range(4):
        h = keras.layers.ReLU()(
            keras.layers.BatchNormalization()(keras.layers.Conv2D(16, 3, padding="same")(h))
        )
    return inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(h))


def gpt(keras: Any) -> Any:
    inputs = keras.Input((64,), dtype="int32")
    h = keras.layers.Embedding(1000, 256)(inputs)
    for _ in range(4):
        n = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.MultiHeadAttention(4, 64)(n, n, use_causal_mask=True)
        n = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.Dense(256)(keras.layers.Dense(1024, "gelu")(n))
    return inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(h))


def lstm(keras: Any) -> Any:
    inputs = keras.Input((50, 16))
    h = keras.layers.LSTM(128, return_sequences=True)(inputs)
    return inputs, keras.layers.Dense(10)(keras.layers.LSTM(128)(h))


MODELS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "MLP, 8 layers of 1,024": (mlp, 4096),
    "CNN with batch normalization, 4 layers of 16 filters on 32 x 32": (cnn, 512),
    "GPT, 4 layers of 256, 64 tokens": (gpt, 64),
    "LSTM, 2 layers of 128, 50 steps": (lstm, 512),
}


def measure(name: str) -> dict[str, float]:
    """The estimated and the measured bytes."""
    import keras
    import numpy as np

    import unisono

    make, samples = MODELS[name]
    model = unisono.Model(*make(keras))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(unisono.optimizers.SGD(0.01), loss, jit_compile=False)
    needed = unisono.model_memory(model)
    shape = (samples, *model.inputs[0].shape[1:])
    x, y = np.zeros(shape, model.inputs[0].dtype), np.zeros(samples, "int32")
    model.train_on_batch(x[:1], y[:1])
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    model.train_on_batch(x, y)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "counted": needed.trained + needed.always + samples * needed.activations,
        "measured": peak - before,
    }


def main() -> None:
    """Prints a table. Run it with `python -m benchmarks.counted_memory`.

    Each model has its own process, on a CPU, without XLA. The estimate counts activations and gradients. The
    measurement is the peak memory of the process during its first step with many samples, minus its memory after a
    step with one sample.
    """
    from benchmarks.tables import publish

    rows = []
    for name, (_, count) in MODELS.items():
        command = [sys.executable, "-m", "benchmarks.counted_memory", name]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=True).stdout
        found = json.loads(out.splitlines()[-1])
        counted, measured = found["counted"], found["measured"]
        sizes = [f"{size / MIB:.0f} MiB" for size in (counted, measured)]
        rows.append([name, f"{count:,}", *sizes, f"{measured / counted:.2f}"])
    publish("counted_memory", ["model", "samples", "counted", "measured", "measured / counted"], rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
