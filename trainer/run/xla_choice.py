"""Which way of running steps is the fastest here: the plain graph, or XLA.

On one replica XLA compiles the whole loop over the steps; on several what each replica computes, since the sums over
replicas cannot stand inside.

The choice is made before the first step, on a copy of the state, so that a run has one way from its first step to its last:
that is what lets a resumed run repeat the bits of a run that was never stopped. It is made only where the work ahead can
pay for compiling; a short fit starts at once with the plain graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ...compat.layers import layers_of
from ...compat.random_state import global_seed_generator_state
from ...distribute.workers.agreement import spans_workers
from ..step.variable_placement import optimizers_of

GRAPH, XLA = "graph", "xla"
IN_WORDS = {GRAPH: "in the plain graph", XLA: "compiled by XLA"}
# Operations that talk to the host, which a trial would run in vain, and those that XLA's loops on CPUs are slow at.
_EFFECTS = (
    "PyFunc",
    "EagerPyFunc",
    "Print",
    "PrintV2",
    "WriteScalarSummary",
    "WriteSummary",
    "WriteHistogramSummary",
)
# What XLA draws from another stream of random numbers, or not at all: the choice must not change a number.
_OTHER_NUMBERS = (
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "Multinomial",
    "RngReadAndSkip",
    "StatelessTruncatedNormalV2",
    "StatelessMultinomial",
    "StatelessRandomGammaV2",
    "StatelessRandomGammaV3",
    "StatelessRandomBinomial",
    "StatelessRandomPoisson",
)
_SLOW_ON_CPU = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput")
FEWEST_STEPS = 400
WORTH = 3.0  # the saving must be this many times what compiling costs


@dataclasses.dataclass(frozen=True)
class Choice:
    """A way, and the reason in words."""

    way: str
    reason: str
    measured: bool = False


def choose(
    model: Any, source: Any, steps_ahead: int | None, clock: Callable[[], float] = time.perf_counter
) -> Choice:
    """The way for a fit of `steps_ahead` steps.

    Args:
        model: the built model; its variables have their values of before when this returns.
        source: the input; its position is the one of before.
        steps_ahead: int or None when unknown.
        clock: seconds.

    Context: host, cross-replica.
    """
    if not model._auto_jit:
        return _as_asked(model, source)
    if model.run_eagerly:
        return Choice(GRAPH, "every step is run eagerly, as `run_eagerly` says")
    if spans_workers(model.distribute_strategy):
        return Choice(GRAPH, "workers that measure for themselves may choose differently")
    if model.distribute_strategy.num_replicas_in_sync > 1 and model.has_own_train_step():
        return Choice(GRAPH, "on several replicas, only the step of `fit` itself can be compiled in part")
    if getattr(model, "_pipeline", None) is not None:
        return Choice(GRAPH, "the stages of a pipeline stand on several devices, and XLA compiles for one")
    if steps_ahead is None or steps_ahead < FEWEST_STEPS:
        return Choice(GRAPH, "few steps")
    function = model.make_train_function()
    known = function.choices.get(_layout(source)) or _remembered(model, source)
    if known is not None:
        return known
    with _on_trial(source) as trial:
        if trial is None:
            return Choice(GRAPH, "the batches come from outside of the graph")
        try:
            choice = _measure(model, trial, steps_ahead, clock)
        except tf.errors.OpError:
            if trial is source:
                raise
            choice = Choice(GRAPH, "the step does not take batches that are made up")
    if choice.measured:
        function.choices[_layout(source)] = dataclasses.replace(choice, measured=False)
        _remember(model, source, choice)
    return choice


def _layout(source: Any) -> Any:
    """What the choice for a source is kept by."""
    return source.batch_rows, getattr(source, "usual_rows", None)


@contextlib.contextmanager
def _on_trial(source: Any) -> Iterator[Any]:
    """A source to draw from that leaves `source` at its place, or None.

    Arrays are read twice; a pipeline, which would not give the same again, is replaced by one with made-up batches.
    """
    if source.per_worker:
        yield None
    elif hasattr(source, "stand_in"):
        stand_in = source.stand_in()
        yield stand_in
        if stand_in is not None:
            stand_in.close()
    elif source.resume_by == "index":
        position = source.state()
        try:
            source.begin_epoch(0)
            yield source
        finally:
            source.restore(position)
    else:
        yield None


def _as_asked(model: Any, source: Any) -> Choice:
    """With `jit_compile=True` the whole loop under XLA, or each step in the graph's loop where XLA's loop is slow."""
    known = Choice(XLA if model.jit_compile else GRAPH, "as `jit_compile` says")
    if not model.jit_compile or model.run_eagerly or model.distribute_strategy.num_replicas_in_sync > 1:
        return known
    function = model.make_train_function()
    if _layout(source) not in function.choices:
        with _on_trial(source) as trial:
            chunk = None if trial is None else trial.take(1)
            if chunk is None or not _has_one_size(chunk):
                return Choice(GRAPH, "each step is compiled, but not the loop around them")
            try:
                function.way = XLA
                slow = _slow_loop(function.operations(chunk))
            finally:
                function.way = GRAPH
        if slow:
            known = Choice(GRAPH, "each step is compiled, but not the loop around them")
        function.choices[_layout(source)] = known
    return function.choices[_layout(source)]


def _has_one_size(chunk: Any) -> bool:
    """Whether XLA can be given the chunk's batches in a loop: their size is known, or they are stacked."""
    if chunk.signature is None:
        return False
    return chunk.usual_rows is not None or (chunk.rows is not None and not chunk.open_ended)


def _slow_loop(operations: set[str]) -> bool:
    """Whether XLA's loops are slow at one of the operations: convolutions on CPUs, which run on one thread there."""
    return not tf.config.list_physical_devices("GPU") and any(name in operations for name in _SLOW_ON_CPU)


def _measure(model: Any, source: Any, steps_ahead: int, clock: Callable[[], float]) -> Choice:
    chunk = source.take(1024)
    several = model.distribute_strategy.num_replicas_in_sync > 1
    if chunk is None or not _has_one_size(chunk) or (several and (chunk.rows is None or chunk.open_ended)):
        return Choice(GRAPH, "the batches have no fixed size")
    function = model.make_train_function()
    began = clock()
    operations = function.operations(chunk)
    tracing = clock() - began
    if any(name in operations for name in _EFFECTS):
        return Choice(GRAPH, "the step talks to the host")
    if any(name in operations for name in _OTHER_NUMBERS):
        return Choice(GRAPH, "XLA would draw other random numbers")
    if _slow_loop(operations):
        return Choice(GRAPH, "XLA's loops are slow at convolutions on CPUs")
    with kept_state(model):
        compiling = 2 * tracing + 0.5
        function(dataclasses.replace(chunk, steps=1))
        few = dataclasses.replace(chunk, steps=min(chunk.steps, 8))
        began = clock()
        function(few)
        if (clock() - began) / few.steps * steps_ahead * 0.7 < WORTH * compiling:
            return Choice(GRAPH, "compiling would cost more than it saves")
        graph = _seconds_a_step(function, chunk, clock)
        try:
            function.way = XLA
            xla = _seconds_a_step(function, chunk, clock)
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError):
            return Choice(GRAPH, "XLA cannot compile this step")
        finally:
            function.way = GRAPH
    way = XLA if xla < 0.95 * graph else GRAPH
    reason = f"{1e6 * graph:.0f} us a step in the plain graph, {1e6 * xla:.0f} us under XLA"
    return Choice(way, reason, measured=True)


def _seconds_a_step(function: Any, chunk: Any, clock: Callable[[], float]) -> float:
    """The best of a few executions of about 50 ms, after one that compiles."""

    def seconds(steps: int) -> float:
        began = clock()
        function(dataclasses.replace(chunk, steps=steps))
        return (clock() - began) / steps

    seconds(1)
    steps = min(chunk.steps, 8)
    pace = seconds(steps)
    while steps * pace < 0.025 and steps < chunk.steps:  # the cost of the call still counts
        steps = min(chunk.steps, 8 * steps, max(2 * steps, int(0.05 / max(pace, 1e-7))))
        pace = seconds(steps)
    return min(pace, seconds(steps), seconds(steps))


class kept_state:
    """Every variable that a step can write has its value of before when the block ends."""

    def __init__(self, model: Any) -> None:
        found = {id(v): v for v in model.variables}
        for part in (*optimizers_of(model), *model.metrics):
            found.update((id(v), v) for v in part.variables)
        found.update((id(v), v) for v in [global_seed_generator_state(make=True)])
        strategy = model.distribute_strategy
        self._copies = [c for v in found.values() for c in strategy.experimental_local_results(v.value)]

    def __enter__(self) -> None:
        self._values = [tf.identity(copy) for copy in self._copies]

    def __exit__(self, *error: Any) -> None:
        for copy, value in zip(self._copies, self._values):
            copy.assign(value)


def _file(model: Any, source: Any) -> pathlib.Path | None:
    folder = os.environ.get("UNISONO_CACHE_DIR")
    if not folder:
        return None
    devices = [tf.config.experimental.get_device_details(d) for d in tf.config.list_physical_devices()]
    facts = [
        [[str(v.shape), str(v.dtype)] for v in model.variables],
        [type(layer).__name__ for layer in layers_of(model)],
        [type(o).__name__ for o in optimizers_of(model)],
        str(source.spec),
        [type(source).__name__, *_layout(source)],
        [type(model.distribute_strategy).__name__, model.distribute_strategy.num_replicas_in_sync],
        [tf.__version__, os.cpu_count(), devices],
    ]
    name = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]
    return pathlib.Path(folder) / f"way-{name}.json"


def _remembered(model: Any, source: Any) -> Choice | None:
    file = _file(model, source)
    try:
        kept = json.loads(file.read_text()) if file is not None else None
        if kept is None or kept["way"] not in (GRAPH, XLA):
            return None
        return Choice(kept["way"], f"remembered: {kept['reason']}")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(model: Any, source: Any, choice: Choice) -> None:
    file = _file(model, source)
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"way": choice.way, "reason": choice.reason}))
    partial.replace(file)
