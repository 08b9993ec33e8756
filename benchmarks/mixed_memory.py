"""Memory of one training step in float32, mixed_float16 and mixed_bfloat16: the activations of a mixed model take half.

Each policy trains in a process of its own, so that one's peak is not the other's. The model is deep and narrow and the
batch large, so that nearly all memory is activations kept for the backward pass. Prints, for each policy, the bytes that
its layers hand on (counted from shapes and dtypes) and the measured peak: of the device on a GPU
(`tf.config.experimental.get_memory_info`), else of the process, less what the process held before the step.

    python -m benchmarks.mixed_memory [--rows 65536] [--layers 24] [--width 64]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
MIB = 2**20
TIMEOUT = 600
"""Seconds for one policy."""


def resident() -> int:
    """Bytes that this process holds now."""
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def measure(policy: str, rows: int, layers: int, width: int) -> dict[str, float]:
    """One step of `rows` rows after one of a single row (which builds everything); bytes."""
    import warnings

    import keras
    import tensorflow as tf

    import unisono

    warnings.simplefilter("ignore", unisono.mixed_precision.SlowPrecisionWarning)
    unisono.mixed_precision.set_global_policy(policy)
    blocks = [keras.layers.Dense(width, activation="gelu") for _ in range(layers)]
    model = unisono.Sequential(
        [keras.layers.Input((width,)), *blocks, keras.layers.Dense(1, dtype="float32")]
    )
    model.compile("sgd", "mse", jit_compile=False)
    x, y = tf.zeros((rows, width)), tf.zeros((rows, 1))
    model.train_on_batch(x[:1], y[:1])
    gpus = tf.config.list_logical_devices("GPU")
    handed_on = sum(rows * width * tf.as_dtype(block.compute_dtype).size for block in blocks)
    if gpus:
        tf.config.experimental.reset_memory_stats("GPU:0")
        before = tf.config.experimental.get_memory_info("GPU:0")["current"]
        model.train_on_batch(x, y)
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    else:
        before = resident()
        model.train_on_batch(x, y)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"handed_on": handed_on, "step": peak - before, "gpu": bool(gpus)}


def in_child(policy: str, arguments: argparse.Namespace) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--policy", policy]
    for name in ("rows", "layers", "width"):
        command += [f"--{name}", str(getattr(arguments, name))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if result.returncode:
        raise SystemExit(f"{policy}: the process ended with {result.returncode}\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    """Measures every policy and prints a table with ratios to float32."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--policy", choices=POLICIES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.policy:
        print(json.dumps(measure(arguments.policy, arguments.rows, arguments.layers, arguments.width)))
        return
    print(f"{arguments.layers} layers of width {arguments.width}, {arguments.rows:,} rows, one step of SGD")
    results = {policy: in_child(policy, arguments) for policy in POLICIES}
    base = results["float32"]
    print(
        f"measured: peak of the {'GPU' if base['gpu'] else 'process'} in the step, less what was held before it\n"
    )
    from benchmarks.tables import publish  # not where this file is run as a child

    rows = []
    for policy, result in results.items():
        handed_on, step = result["handed_on"], result["step"]
        ratio = f"{step / base['step']:.2f}"
        rows.append([policy, f"{handed_on / MIB:,.0f} MiB", f"{step / MIB:,.0f} MiB", ratio])
    head = ["policy", "handed on by the layers", "measured: peak of the process in the step", "ratio"]
    publish("mixed_memory", head, rows)


if __name__ == "__main__":
    main()
