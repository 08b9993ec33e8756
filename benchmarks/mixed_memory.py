"""Measures the memory of a training step in float32, mixed_float16 and mixed_bfloat16: mixed activations take half."""

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
    """Bytes of resident memory of this process."""
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def measure(policy: str, samples: int, layers: int, width: int) -> dict[str, float]:
    """Bytes of one step with `samples` samples, after a step with one sample that builds everything."""
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
    x, y = tf.zeros((samples, width)), tf.zeros((samples, 1))
    model.train_on_batch(x[:1], y[:1])
    gpus = tf.config.list_logical_devices("GPU")
    handed_on = sum(samples * width * tf.as_dtype(block.compute_dtype).size for block in blocks)
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
    """Runs `measure` in a new process."""
    command = [sys.executable, __file__, "--policy", policy]
    for name in ("samples", "layers", "width"):
        command += [f"--{name}", str(getattr(arguments, name))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if result.returncode:
        raise SystemExit(f"{policy}: the process ended with {result.returncode}\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    """Measures every policy and prints a table with ratios to float32.

        python -m benchmarks.mixed_memory [--samples 65536] [--layers 24] [--width 64]

    Each policy has its own process, so that the peaks are independent. The model is deep and narrow and the batch
    large, so that nearly all memory is activations. For each policy the table has the bytes of the layers' outputs
    (from shapes and dtypes) and the measured peak minus the memory before the step: of the device on a GPU, otherwise
    of the process.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=65536, help="samples of the batch")
    parser.add_argument("--layers", type=int, default=24, help="number of layers")
    parser.add_argument("--width", type=int, default=64, help="units of a layer")
    parser.add_argument("--policy", choices=POLICIES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.policy:
        print(json.dumps(measure(arguments.policy, arguments.samples, arguments.layers, arguments.width)))
        return
    print(
        f"{arguments.layers} layers of width {arguments.width}, {arguments.samples:,} samples, one step of SGD"
    )
    results = {policy: in_child(policy, arguments) for policy in POLICIES}
    base = results["float32"]
    print(
        f"measured: peak of the {'GPU' if base['gpu'] else 'process'} in the step, minus the memory before it\n"
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
