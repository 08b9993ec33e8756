"""Shows how the time of a CNN step divides among operations, from TensorFlow's profile of `fit`.

`python -m benchmarks.cnn_kernels [STEPS]`. Operations may overlap, so their sum is larger than the step.
"""

from __future__ import annotations

import collections
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import unisono
from benchmarks.contestants import keras_models
from benchmarks.contestants.task import BATCH, Task, arrays
from benchmarks.tables import publish

GROUPS = {
    "convolutions, gradients of filters": "BackpropFilter",
    "convolutions, gradients of inputs": "BackpropInput",
    "convolutions, forward": "Conv2D",
    "pooling, backward": "MaxPoolGrad",
    "pooling, forward": "MaxPool",
    "ReLU, backward": "ReluGrad",
    "dense layer": "MatMul",
}
"""Group -> a part of the operation's name; the first match counts."""
OTHERS = "all else: loss, Adam, metrics, reading the batch"


def durations(folder: pathlib.Path) -> dict[str, float]:
    """Operation type -> seconds, summed over the host's threads."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found: dict[str, float] = collections.defaultdict(float)
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in (plane for plane in space.planes if plane.name == "/host:CPU"):
            names = {key: value.name for key, value in plane.event_metadata.items()}
            for event in (event for line in plane.lines for event in line.events):
                _, colon, kind = names[event.metadata_id].rpartition(":")
                if colon and "/" in _:
                    found[kind] += 1e-12 * event.duration_ps
    return found


def main(steps: int = 400) -> None:
    """Profiles one epoch and prints a table."""
    model = keras_models.build(keras, Task("cnn"), unisono.Model)
    model.compile(**keras_models.compile_arguments(keras), jit_compile=False)
    x, y = arrays("cnn", steps)
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            model.fit(x, y, batch_size=BATCH, verbose=0)  # pyright: ignore[reportArgumentType]
        found = durations(pathlib.Path(folder))
    loops = ("While", "StatefulPartitionedCall", "PartitionedCall", "If", "StatelessWhile")
    groups = dict.fromkeys([*GROUPS, OTHERS], 0.0)
    for kind, seconds in found.items():
        if kind not in loops:
            groups[next((name for name, part in GROUPS.items() if part in kind), OTHERS)] += seconds
    total = sum(groups.values())
    rows = [
        [name, f"{1e6 * seconds / steps:,.0f}", f"{100 * seconds / total:.0f} %"]
        for name, seconds in groups.items()
        if seconds
    ]
    publish("cnn_kernels", ["operations", "us", "share"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
