"""Compares the peak activation memory of a pipelined step with the formula, by stages, schedule and rematerialization."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from unisono.distribute.pipeline import Pipeline
from unisono.trainer.pipeline.engine import PipelinedStep
from unisono.trainer.pipeline.micro_batches import micro_steps

LAYERS = 8


class Scale(keras.layers.Layer):
    """tanh(x w) with a scalar w: one activation, hardly any weights."""

    def build(self, shape: Any) -> None:
        """Creates w."""
        self.w = self.add_weight(shape=(), initializer="ones")

    def call(self, x: Any) -> Any:
        """The layer's output, of the shape of x."""
        return tf.math.tanh(x * self.w)


def main() -> None:
    """Prints a table.

        python -m benchmarks.pipeline_memory --stages 1 2 4 --micro-batches 8 --json memory.json

    On GPUs, memory is each stage's peak from TensorFlow's allocator. On a CPU, it is the growth of the process in its
    first step, for all stages together. The formula counts activations of one layer for one micro-batch (L layers in
    a stage, M micro-batches, K stages): the M inputs, and on stage k M L with GPipe or min(M, K - k) L with 1F1B.
    With rematerialization a stage keeps one boundary for each of these micro-batches, and L activations of the
    current one. Temporary tensors of a backward pass are not counted.
    """
    options = _options()
    if options.case:
        stages, schedule, rematerialize = options.case.split(",")
        print(json.dumps(_case(options, int(stages), schedule, rematerialize == "True")))
        return
    results = []
    for case in itertools.product(options.stages, options.schedules, (False, True)):
        # A new process each time: a process keeps the memory that a step has used.
        command = [sys.executable, __file__, "--case", ",".join(map(str, case))]
        for name in ("micro_batches", "megabytes", "gpu_megabytes"):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        found = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600, text=True)
        results.append(json.loads(found.stdout.splitlines()[-1]))
        print(_line(results[-1], options.megabytes), flush=True)
    from benchmarks.tables import publish  # not where this file is run as a child

    names = {"gpipe": "GPipe", "1f1b": "1F1B"}
    settings = list(itertools.product(options.schedules, (False, True)))
    head = ["stages"]
    for schedule, again in settings:
        head += [names[schedule] + (", rematerialized" if again else ""), "rule"]
    rows = []
    for stages in options.stages:
        row = [str(stages)]
        for result in (r for r in results if r["stages"] == stages):
            row += [f"{sum(result['peak']) / options.megabytes / 2**20:.1f}", str(sum(result["rule"]))]
        rows.append(row)
    publish("pipeline_memory", head, rows)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


def _logical_devices(options: Any, stages: int) -> list[str]:
    gpus = tf.config.list_physical_devices("GPU")
    limit = options.gpu_megabytes // stages if gpus else None
    configuration = [tf.config.LogicalDeviceConfiguration(memory_limit=limit)] * stages
    tf.config.set_logical_device_configuration(
        (gpus or tf.config.list_physical_devices("CPU"))[0], configuration
    )
    return [f"{'GPU' if gpus else 'CPU'}:{i}" for i in range(stages)]


def _case(options: Any, stages: int, schedule: str, rematerialize: bool) -> dict[str, Any]:
    width = options.megabytes * 2**20 // 4
    m = options.micro_batches
    devices = _logical_devices(options, stages)
    partition = [LAYERS // stages] * stages
    pipeline = Pipeline(devices, m, schedule=schedule, partition=partition, rematerialize=rematerialize)
    model = keras.Sequential([keras.Input((width,)), *[Scale() for _ in range(LAYERS)]])
    plan = pipeline.plan(model, m)

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> Any:
        parts = [tf.reshape(x[q], [1, 1]) * tf.ones([1, width]) for q in range(m)]
        run = PipelinedStep(plan.chain, plan.stages, parts, micro_steps(m, m))

        def head(q: int | None, outputs: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(outputs)

        # The outputs are not returned, so that TensorFlow can free them.
        result = run.train(plan.jobs, head, True, rematerialize)
        return [result.gradients[id(v)] for v in model.trainable_variables]

    x = tf.linspace(0.1, 0.2, m)
    run = step.get_concrete_function(x)
    if devices[0].startswith("CPU"):
        before = _resident()
        run(x)[0].numpy()
        peak = [_resident() - before]
    else:
        run(x)[0].numpy()
        peak = [tf.config.experimental.get_memory_info(device)["peak"] for device in devices]
    return {
        "stages": stages,
        "micro_batches": m,
        "schedule": schedule,
        "rematerialize": rematerialize,
        "peak": peak,
        "rule": _rule(stages, m, schedule, rematerialize, shared=len(peak) == 1 < stages),
    }


def _rule(stages: int, m: int, schedule: str, rematerialize: bool, shared: bool) -> list[int]:
    """The formula, in activations of one layer for one micro-batch: by stage, or for one process with all stages."""
    layers = LAYERS // stages
    kept = [m if schedule == "gpipe" else min(m, stages - k) for k in range(stages)]
    boundaries = [m, *kept[1:]]
    if rematerialize:
        work = [layers] * stages
    else:
        work = [count * layers for count in kept]
        boundaries = [m, *([0] * (stages - 1))] if shared else boundaries
    by_stage = [boundary + count for boundary, count in zip(boundaries, work)]
    return [sum(by_stage)] if shared else by_stage


def _resident() -> int:
    """Bytes of resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _line(result: dict[str, Any], megabytes: int) -> str:
    units = [f"{peak / megabytes / 2**20:.1f}" for peak in result["peak"]]
    again = "rematerialized" if result["rematerialize"] else ""
    return (
        f"{result['stages']} stages  {result['schedule']:6} {again:15} "
        f"measured {' '.join(units):22} rule {' '.join(map(str, result['rule']))}"
    )


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 4], help="numbers of stages")
    parser.add_argument("--micro-batches", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--megabytes", type=int, default=40, help="size of one activation")
    parser.add_argument(
        "--gpu-megabytes", type=int, default=32768, help="GPU memory, divided among the stages"
    )
    parser.add_argument("--schedules", nargs="+", default=["gpipe", "1f1b"], help="schedules to compare")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the numbers to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
