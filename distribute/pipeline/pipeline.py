"""`Pipeline`: the arguments for stages and micro-batches, and the scope that assigns models to it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..arguments import number, one_of, show, truth, whole_number
from ..hardware.devices import resolve_devices
from ..step_context import here
from . import remote
from .schedule import SCHEDULES
from .timeline import Timeline

# `planner(model, pipeline, batch_size)` is a model split into stages, with `summary()` and `timeline(transfer)`.
Planner = Callable[[Any, "Pipeline", int | None], Any]
_planner: Planner | None = None


def register_planner(planner: Planner) -> None:
    """Set the planner of models, which is above this package, because it knows Keras."""
    global _planner
    _planner = planner


class Pipeline:
    """Trains one model over several devices: consecutive layers on each, micro-batch after micro-batch.

    The result does not depend on the number of stages, on the schedule, or on rematerialization. Micro-batches have two
    effects: batch normalization uses the statistics of the micro-batch (for inference: averages over the whole batch), and
    every micro-batch has separate dropout masks. Training raises a `StageError` if the process of a stage ends or hangs.

    Args:
        devices: one name for each stage, such as "GPU:0" or "/job:worker/task:1/device:GPU:0"; with replicas the
            first replica's stages, then the second's. A device may stand for several stages.
        micro_batches: int; M, the number of parts of a replica's batch. Four per stage keep the bubble below a fifth.
        schedule: "gpipe": all forward passes, then all backward ones; "1f1b": one forward and one backward pass in
            turn, which keeps the activations of at most K micro-batches instead of M.
        partition: "auto", which makes the slowest stage as fast as possible; or K numbers of layers; or the names of the
            K - 1 layers with which the later stages begin.
        cost: the cost for "auto": "estimated", from the operations in the graph; "measured", from a short run of each
            layer on the first device.
        rematerialize: bool; keep only the tensors at the cuts, and rerun a stage's forward pass before its backward
            pass. It needs less memory and about a third more computation, and gives the same numbers.
        memory_limit: maximum bytes of a stage (estimated), or None.
        replicas: int; R, the number of copies of the pipeline; each trains on its part of the samples.

    Attributes:
        devices: the full name of each device, beginning with the stages of the first replica.
        stages: int; K, the number of stages.
        sharded: str or None; the level of `unisono.distribute.sharded`.

    The other arguments are attributes of the same names.

    Raises:
        ValueError: a value is invalid; the message names it.

    Source: Huang et al. 2019, arXiv 1811.06965.

    Examples:
        >>> pipeline = unisono.distribute.Pipeline(["CPU:0", "CPU:0"], micro_batches=8, schedule="1f1b")
        >>> with pipeline.scope():  # on GPUs: ["GPU:0", "GPU:1"]
        ...     model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        ...     model.compile("adam", "mse")
        >>> history = model.fit(x, y, batch_size=64, verbose=0)
        >>> print(pipeline.summary())
        stage  device  layers      parameters  cost (operations)  share  memory
        0      CPU:0   1: dense... 40 ...
    """

    def __init__(
        self,
        devices: Sequence[str],
        micro_batches: int,
        schedule: str = "gpipe",
        partition: str | Sequence[Any] = "auto",
        cost: str = "estimated",
        rematerialize: bool = False,
        memory_limit: float | None = None,
        replicas: int = 1,
    ) -> None:
        self.micro_batches = whole_number("micro_batches", micro_batches)
        self.replicas = whole_number("replicas", replicas)
        remote.connect_if_launched(devices)
        self.devices = resolve_devices(devices)
        self.schedule = one_of("schedule", schedule, sorted(SCHEDULES))
        self.cost = one_of("cost", cost, ["estimated", "measured"])
        self.rematerialize = truth("rematerialize", rematerialize)
        self.memory_limit = number("memory_limit", memory_limit, above=0, optional=True, finite=False)
        if len(self.devices) % self.replicas:
            raise ValueError(
                f"`devices` ({len(self.devices)}) must be divisible by `replicas` ({self.replicas}): pass a multiple."
            )
        self.stages = len(self.devices) // self.replicas
        self.partition = _check_partition(partition, self.stages)
        self.sharded: str | None = None
        self._plans: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._newest: weakref.ref[Any] | None = None

    @contextlib.contextmanager
    def scope(self) -> Iterator[Pipeline]:
        """Enter a scope, in which models are created or compiled to train on this pipeline.

        Variables are created in the host's memory, so that a model larger than any one device can be created, and
        move to their stage once the model is split.
        """
        if tf.distribute.has_strategy():
            raise ValueError(
                "The scope of a Pipeline must not be entered inside a strategy's scope: "
                "for data parallelism use Pipeline(..., replicas=R)."
            )
        with here.set_to(pipeline=self), tf.device("CPU:0"):
            yield self

    def plan(self, model: Any, batch_size: int | None = None) -> Any:
        """Return the model's plan, the same on every call; the first one splits it and moves its variables to their stages.

        Args:
            model: a built Sequential or functional model.
            batch_size: int or None; samples of a global batch, where known.

        Raises:
            ValueError: the model cannot be split as requested.
        """
        whole_number("batch_size", batch_size, optional=True)
        plan = self._plans.get(model) if hasattr(model, "layers") else None
        if plan is None:
            if _planner is None or not hasattr(model, "layers"):
                raise ValueError(f"`model` must be built in this pipeline's scope. Received: {show(model)}")
            plan = self._plans[model] = _planner(model, self, batch_size)
        self._newest = weakref.ref(model)
        return plan

    def shard(self, level: str) -> None:
        """Let each replica hold a part of the optimizer's state: `unisono.distribute.sharded` calls it.

        Raises:
            ValueError: a model was split already, whose optimizer state may exist; or the level is not for pipelines.
        """
        if level == "weights":
            raise ValueError(
                '`level` must be "optimizer" for a Pipeline, because each micro-batch would all-gather '
                "the weights of a stage twice: for fewer weights per device use more stages. Received: 'weights'"
            )
        if self._plans and self.sharded != level:
            raise ValueError(
                f"`strategy` must not have models when its level is set: call `sharded(pipeline, level={level!r})` "
                f"right after `Pipeline(...)`. Received: a Pipeline with {len(self._plans)} model(s)"
            )
        self.sharded = level

    def summary(self, model: Any = None) -> str:
        """Return a table: stages, layers, parameters, cost, memory, expected bubble.

        Args:
            model: the model; None: the one that was last used with this pipeline.
        """
        return self._plan_of(model).summary()

    def timeline(self, model: Any = None, transfer: float | Sequence[float] = 0.0) -> Timeline:
        """Return one step as a diagram, simulated from the costs of the stages.

        Args:
            model: the model; None: the one that was last used with this pipeline.
            transfer: the time of sending one micro-batch over a cut, in the unit of the costs; one number or K - 1.

        Returns:
            A `Timeline`: a notebook displays it, and `save(path)` writes an SVG file.
        """
        if not isinstance(transfer, list | tuple):
            number("transfer", transfer, least=0)
        return self._plan_of(model).timeline(transfer)

    def _plan_of(self, model: Any) -> Any:
        model = self._newest() if model is None and self._newest is not None else model
        if model is None:
            raise ValueError(
                "`model` is None, but no model was created in this pipeline's scope: pass a model."
            )
        return self.plan(model)

    def remember(self, model: Any) -> None:
        """Record a model created in the scope, for `summary()` and `timeline()` without an argument."""
        self._newest = weakref.ref(model)


def _check_partition(parts: Any, stages: int) -> str | Sequence[Any]:
    if isinstance(parts, str) and parts == "auto":
        return parts
    several = isinstance(parts, list | tuple)
    counts = several and len(parts) == stages and all(type(part) is int and part > 0 for part in parts)
    names = several and len(parts) == stages - 1 and all(isinstance(part, str) for part in parts)
    if not counts and not names:
        raise ValueError(
            f'`partition` must be "auto", {stages} positive numbers of layers, one for each stage, or the names '
            f"of the {stages - 1} layers with which the later stages begin. Received: {show(parts)}"
        )
    return parts


def current_pipeline() -> Pipeline | None:
    """Return the pipeline in whose scope this thread is, or None."""
    return here.pipeline
