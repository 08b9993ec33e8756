"""Lists the trainers of the comparison. Each runs in its own process, which imports its framework."""

from __future__ import annotations

import dataclasses
import importlib.util

from .task import Task


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One trainer.

    Attributes:
        name: its name on the command line and in files.
        label: its name in tables.
        module: module of this package with `make(name, task)`.
        needs: packages that must be installed.
        hand_written: whether it is a hand-written loop, which computes no metrics.
        arrays: whether it trains from NumPy arrays.
        dataset: whether it trains from a `tf.data.Dataset`.
        replicas: whether it trains on several logical replicas.
        jax: whether Keras is to run on JAX.
    """

    name: str
    label: str
    module: str
    needs: tuple[str, ...]
    hand_written: bool = False
    arrays: bool = True
    dataset: bool = True
    replicas: bool = True
    jax: bool = False

    def reason_to_skip(self, task: Task) -> str | None:
        """The reason why it cannot run `task`; None if it can."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            return f"not installed: {', '.join(missing)}"
        if task.input == "arrays" and not self.arrays:
            return "trains from tf.data only"
        if task.input == "dataset" and not self.dataset:
            return "does not read tf.data in its loop"
        if task.replicas > 1 and not self.replicas:
            return "trains on one replica only"
        if (task.layers, task.callbacks) != (Task.layers, Task.callbacks) and self.hand_written:
            return "has no callbacks and one shape"
        return None


_TF = ("tensorflow", "keras")
_JAX = ("jax", "keras")

ALL = (
    Contestant("ours", "unisono fit", "ours", _TF),
    Contestant("ours_graph", "unisono fit, jit_compile=False", "ours", _TF),
    Contestant("ours_xla", "unisono fit, jit_compile=True", "ours", _TF),
    Contestant("keras", "Keras 3 on TensorFlow, fit", "keras_fits", _TF),
    Contestant("keras_100", "Keras 3 on TensorFlow, fit, 100 steps per compiled call", "keras_fits", _TF),
    Contestant("keras_xla", "Keras 3 on TensorFlow, fit, jit_compile=True", "keras_fits", _TF),
    Contestant("keras_jax", "Keras 3 on JAX, fit", "keras_fits", _JAX, jax=True),
    Contestant(
        "keras_jax_100", "Keras 3 on JAX, fit, 100 steps per compiled call", "keras_fits", _JAX, jax=True
    ),
    Contestant("tf_keras", "tf_keras, fit", "keras_fits", ("tensorflow", "tf_keras")),
    Contestant(
        "lightning", "Lightning, fit", "torch_loops", ("torch", "lightning"), False, True, False, False
    ),
    Contestant("tf_step", "TensorFlow loop, one step a call", "tensorflow_loops", _TF, True),
    Contestant("tf_graph", "TensorFlow loop, in the graph", "tensorflow_loops", _TF, True),
    Contestant(
        "tf_graph_xla",
        "TensorFlow loop, in the graph, each step under XLA",
        "tensorflow_loops",
        _TF,
        True,
        replicas=False,
    ),
    Contestant(
        "tf_xla",
        "TensorFlow loop, all of it under XLA, data on the device",
        "tensorflow_loops",
        _TF,
        True,
        dataset=False,
        replicas=False,
    ),
    Contestant("jax_scan", "JAX scan", "jax_loops", _JAX, True, True, False, False, True),
    Contestant("torch", "PyTorch loop", "torch_loops", ("torch",), True, True, False, False),
)
BY_NAME = {contestant.name: contestant for contestant in ALL}
