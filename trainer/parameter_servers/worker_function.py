"""Functions that workers run on pieces of the input: hands out pieces and collects their results."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_graphs.graphs import graph_function
from ...compat.tensorflow_private.parameter_servers import mark_scheduled
from ...distribute.parameter_servers.strategy import pool_of
from ...distribute.step_context import StepContext, step_scope
from ...state.trained_model import TrainedModel
from ..inputs import Chunk
from ..inputs.batch import batch_spec, concat_samples, is_scalar, map_leaves, sample_count, sample_counts
from ..inputs.sources.feed import Group
from ..run.loops.compiled_calls import CompiledCall
from .step_results import ReadOnce

HOST = "/job:chief/replica:0/task:0/device:CPU:0"
"""The coordinator."""


class Piece(NamedTuple):
    """A chunk of `pieces_of` that is scheduled."""

    chunk: Chunk
    steps: int
    number: int
    line: int
    """Its line in the ledger."""


class WorkerFunction:
    """Runs pieces on workers. Owns their compiled functions and their input tensors.

    Attributes:
        lines: int; pieces that may be in progress at the same time: one on each worker, and one that waits for it.
        most_steps: int or None; the maximum number of steps of a piece.
    """

    most_steps: int | None = None

    def __init__(self, model: TrainedModel) -> None:
        if model.run_eagerly:
            raise ValueError(
                "`run_eagerly=True` runs a step operation by operation, and a lost worker would leave a part of it on the "
                "parameter servers: leave `run_eagerly` out, or debug on one device."
            )
        self._model, self._strategy = model, model.distribute_strategy
        self._pool = pool_of(self._strategy)
        self._compiled: dict[Any, Any] = {}
        self._number = 0
        self.lines = 2 * self._pool.num_workers
        self._held: dict[int, tuple[Any, Any]] = {}
        self._phase: Any = None  # the `Phase` of the last pass
        self._runs = False  # whether it is running

    @property
    def fixed_steps(self) -> int | None:
        """The steps of a piece where the user has set `steps_per_execution`."""
        return self._model._fixed_steps

    def run(self, worker: int, piece: Piece) -> Any:
        """Return the result of a piece, on the host. Context: host, in the thread of a worker."""
        raise NotImplementedError

    def _make(self, chunk: Chunk) -> Any:
        """Return the compiled function for chunks with the layout of `chunk`."""
        raise NotImplementedError

    def prepare(self, chunk: Chunk) -> None:
        """Trace the step for the layout of `chunk`; errors in the user's code are raised here. Context: host."""
        if chunk.reader not in self._compiled:
            self._compiled[chunk.reader] = self._make(chunk)

    def _inputs(self, worker: int, chunk: Chunk) -> Any:
        """Return the inputs of a chunk, on the calling thread's worker: its arrays stay there while chunks have the same."""
        arrays, place = chunk.inputs
        held = self._held.get(worker)
        if held is None or held[0] is not arrays:
            with tf.device(f"/job:worker/replica:0/task:{worker}/device:CPU:0"):
                held = self._held[worker] = (arrays, map_leaves(tf.identity, arrays))
        return held[1], place

    def free_inputs(self) -> None:
        """Free the memory of all workers."""
        self._held.clear()

    def _trace(self, function: Callable[..., Any], *signature: Any) -> Any:
        """Return the concrete function: a `tf.function` would be retraced on each worker."""
        with self._strategy.scope(), mark_scheduled(self._strategy):
            return graph_function(function).get_concrete_function(*signature)

    @contextlib.contextmanager
    def phase(self, in_order: bool = True, max_staleness: int | None = None) -> Iterator[None]:
        """Run a pass on the workers. Its results come `in_order` of the input, or as they arrive."""
        self._free, self._early, self._in_order = list(range(self.lines)), {}, in_order
        self._due = self._number + 1
        with self._pool.phase(
            self.run, lambda worker: self._held.pop(worker, None), max_staleness
        ) as self._phase:
            self.begin()
            self._runs = True
            try:
                yield
            finally:
                self._runs = False
        self.commit()

    def accepts_more(self) -> bool:
        """Return whether another piece may be handed out before a result has come."""
        return self._phase.under_way + len(self._early) < self.lines

    def is_busy(self) -> bool:
        """Return whether a result is still to come."""
        return self._phase.under_way + len(self._early) > 0

    def __call__(self, call: CompiledCall) -> tuple[int, Any]:
        """Hand out the piece of a call, if it has one; return a piece's (steps, results), (0, None) while it accepts more.

        Outside a phase one worker runs the call.
        """
        if not self._runs:
            return self._alone(call.chunks[0])
        for chunk in call.chunks:
            self._number += 1
            self._phase.put(Piece(chunk, chunk.steps, self._number, self._free.pop()))
        if call.chunks and self.accepts_more():
            return 0, None
        while self._due not in self._early:
            piece, result = self._phase.get()
            self._free.append(piece.line)
            self._early[piece.number if self._in_order else self._due] = piece.steps, result
        self._due += 1
        steps, result = self._early.pop(self._due - 1)
        return steps, self._results(result)

    def _results(self, result: Any) -> Any:
        """Return the results after a piece: outputs, or logs."""
        return result

    def _alone(self, chunk: Chunk) -> tuple[int, Any]:
        """Return the steps of a chunk of one piece, and its results."""
        chunk, *_ = pieces_of(chunk)
        self.prepare(chunk)
        with self.phase():
            self(CompiledCall([chunk]))
            found = self(CompiledCall([]))
        self.free_inputs()
        return found

    def begin(self) -> None:
        """Begin a pass."""

    def commit(self) -> None:
        """Note that all steps that were handed out are done."""

    def graph(self) -> Any:
        """Return the first graph, for drawing; None without one."""
        return next((function.graph for function in self._compiled.values()), None)

    def compilations(self) -> int:
        """Return the number of graphs so far."""
        return len(self._compiled)


class WorkerPrediction(WorkerFunction):
    """Runs `predict_step` on workers; the result of a piece is a list with the outputs of each of its batches."""

    def _make(self, chunk: Chunk) -> Any:
        alone, state = self._pool.num_workers == 1, self._model.non_trainable_variables

        def run(inputs: Any, i: tf.Tensor, worker: tf.Tensor) -> Any:
            batch = chunk.reader(inputs, i)
            total = chunk.batch_size if chunk.batch_size is not None else sample_count(batch)
            step = StepContext(0 if alone else worker, 1, total, total)
            with tf.distribute.ReplicaContext(self._strategy, 0):
                with step_scope(step), ReadOnce(alone, (), state) as writes:
                    outputs = self._model.predict_step(batch)
                writes.make(step)
            return outputs

        number = tf.TensorSpec([], tf.int32)
        return self._trace(run, chunk.signature, number, number)

    def run(self, worker: int, piece: Piece) -> list[Any]:
        """Return the outputs of each batch, on the host. Context: host, in the thread of a worker."""
        function = self._compiled[piece.chunk.reader]
        inputs = self._inputs(worker, piece.chunk)
        answers = []
        for i in range(piece.steps):
            with tf.device(HOST):
                numbers = tf.constant(i), tf.constant(worker)
            outputs = function(inputs, *numbers)
            with tf.device(HOST):
                answers.append(tf.nest.map_structure(tf.identity, outputs, expand_composites=True))
        return answers


def pieces_of(chunk: Chunk, drawn: Callable[[int], None] | None = None) -> list[Chunk]:
    """Return the chunk as chunks of `(arrays, place)`; batches of one size are one of them.

    The coordinator reads the input in its order, as on a single device, also a function of
    `tf.distribute.InputContext`. So an epoch has every sample once, and a single worker sees the batches of a
    single-device `fit` in their order. Context: host.

    Args:
        chunk: from a source.
        drawn: called with the number of its batches if the data ended before all of them. None: its length is known.
    """
    inputs = chunk.inputs
    if chunk.signature is not None and isinstance(inputs, tuple) and tf.is_tensor(inputs[1]):
        return [chunk]  # resident arrays, and the numbers of some of their samples
    batches: list[Any] = []
    for i in range(chunk.steps):
        batch = chunk.batch(i)
        if batch is None:
            assert drawn is not None
            drawn(len(batches))
            break
        batches.append(batch)
    if any(map(is_scalar, tf.nest.flatten(batches))):  # a value of one whole batch
        return [_together([batch], int(sample_count(batch))) for batch in batches]
    if any(len(set(map(int, sample_counts(batch)))) > 1 for batch in batches):
        return [_together([batch], None) for batch in batches]
    of_one_size = itertools.groupby(batches, lambda batch: int(sample_count(batch)))
    return [_together(list(group), samples) for samples, group in of_one_size]


def _together(batches: list[Any], samples: int | None) -> Chunk:
    """Return batches of `samples` samples as one chunk. None: one batch whose arrays have different numbers of samples."""
    arrays, count = concat_samples(batches), len(batches)
    group = Group(arrays, np.arange(count + 1) * (samples or 0), samples, whole=samples is None)
    return group.part(0, count, batch_spec(arrays))
