"""Prints TensorFlow's devices, then an all-reduce, as lines of JSON; `doctor` runs it as a process that may hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

_VALUES = [1.0, 2.0, 3.0]


def run_probe(environ: Mapping[str, str], seconds: float) -> tuple[list[dict[str, Any]], str]:
    """Runs this module in a separate process; the lines that it printed, and why it did not end well ("" if it did)."""
    command = [sys.executable, "-m", "unisono.commands.machine.doctor_probe"]
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, timeout=seconds)
        output, status, errors = done.stdout, done.returncode, done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        output, status, errors = error.stdout or b"", 1, f"no answer after {seconds:.0f} s"
    lines = [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")]
    if status == 0:
        return lines, ""
    last = [line for line in errors.splitlines() if line.strip()][-1:] or [f"exit status {status}"]
    return lines, last[0].strip()


def main() -> None:
    """Prints the two lines."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.pop("TF_CONFIG", None)  # one machine is examined; the cluster is checked without TensorFlow
    for answer in (devices, all_reduce):
        print(json.dumps(answer()), flush=True)


def devices() -> dict[str, Any]:
    """Devices, their names and memory, and whether half precision is fast on them."""
    import tensorflow as tf

    from ...mixed_precision.hardware import CPU_INSTRUCTIONS, cpu_flags, gpu_capabilities, why_slow

    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    capabilities, flags = gpu_capabilities(), cpu_flags()
    on_gpu = [f"compute capability {c[0]}.{c[1]}" for c in capabilities if c is not None]
    half = ("float16", "bfloat16")
    return {
        "gpus": [d.get("device_name", gpu.name) for d, gpu in zip(details, gpus)],
        "tpus": len(tf.config.list_physical_devices("TPU")),
        "built_with_cuda": tf.test.is_built_with_cuda(),
        "slow": {dtype: why_slow(dtype, capabilities, flags) for dtype in half},
        "instructions": {dtype: on_gpu or sorted(flags & set(CPU_INSTRUCTIONS[dtype])) for dtype in half},
    }


def all_reduce() -> dict[str, Any]:
    """Sums `_VALUES` over the devices found (two logical ones where there is only a CPU); the second run is timed."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        names = [f"GPU:{i}" for i in range(len(gpus))]
    else:
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
        names = ["CPU:0", "CPU:1"]
    strategy = tf.distribute.MirroredStrategy(names)

    @tf.function
    def total() -> Any:
        def on_replica() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(_VALUES))

        return strategy.run(on_replica)

    total()
    began = time.perf_counter()
    answers = [v.numpy().tolist() for v in strategy.experimental_local_results(total())]
    return {
        "names": names,
        "answers": answers,
        "expected": [v * len(names) for v in _VALUES],
        "milliseconds": (time.perf_counter() - began) * 1e3,
    }


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
        sys.exit(1)
