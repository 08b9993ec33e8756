"""Functions that workers run on pieces of the input: hands out pieces and collects their results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.tensorflow_graphs.graphs import graph_function
from ...compat.tensorflow_private.parameter_servers import scheduling
from ...distribute.parameter_servers.strategy import pool_of
from ...distribute.parameter_servers.worker_pool import Phase
from ...distribute.step_context import StepContext, step_scope
from ..inputs import Chunk
from ..inputs.batch import sample_count
from ..run.loops.compiled_calls import CompiledCall
from ..step.collected_writes import CollectedWrites
from .pieces import HOST, Piece, WorkerMemory, pieces_of


class WorkerFunction:
    """Runs pieces on workers. Owns their compiled functions and their input tensors.

    Args:
        model: built under a `ParameterServerStrategy`.

    Attributes:
        lines: int; pieces that may be in progress at the same time: one on each worker, and one that waits for it.
        most_steps: int or None; the maximum number of steps of a piece.
        memory: the input tensors on the workers.
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
        self.memory = WorkerMemory()

    @property
    def fixed_steps(self) -> int | None:
        """The steps of a piece where the user has set `steps_per_execution`."""
        return self._model._fixed_steps

    def run(self, worker: int, piece: Any) -> Any:
        """The result of a piece, on the host. Context: host, in the thread of a worker."""
        raise NotImplementedError

    def _make(self, piece: Piece) -> Any:
        """The compiled function for pieces with the layout of `piece`."""
        raise NotImplementedError

    def prepare(self, piece: Piece) -> None:
        """Traces the step for the layout of `piece`; errors in the user's code are raised here. Context: host."""
        self._function(piece)

    def _function(self, piece: Piece) -> Any:
        key = (piece.reader, piece.samples)
        if key not in self._compiled:
            self._compiled[key] = self._make(piece)
        return self._compiled[key]

    def _traced(self, function: Callable[..., Any], *signature: Any) -> Any:
        """The concrete function: a `tf.function` would be retraced on each worker."""
        with self._strategy.scope(), scheduling(self._strategy):
            return graph_function(function).get_concrete_function(*signature)

    def phase(self, max_staleness: int | None = None) -> contextlib.AbstractContextManager[Phase]:
        """The workers, ready for pieces."""
        return self._pool.phase(self.run, self.memory.forget, max_staleness)

    def results(
        self,
        phase: Phase,
        next_piece: Callable[[], Piece | None],
        arrived: Callable[[Piece], None] = lambda piece: None,
        in_order: bool = False,
    ) -> Iterator[tuple[Piece, Any]]:
        """Hands out pieces and yields (piece, result), until none is in progress and none is left.

        Args:
            phase: the current phase.
            next_piece: returns the next piece; None: there is none before more results have arrived.
            arrived: called when the result of a piece has arrived.
            in_order: whether to yield results in the order of the input, instead of the order of arrival.
        """
        free = list(range(self.lines))
        early: dict[int, tuple[Piece, Any]] = {}
        due = self._number + 1
        while True:
            while phase.under_way + len(early) < self.lines and (piece := next_piece()) is not None:
                self._number += 1
                phase.put(dataclasses.replace(piece, number=self._number, line=free.pop()))
            if not phase.under_way:
                return
            piece, result = phase.get()
            free.append(piece.line)
            arrived(piece)
            if not in_order:
                yield piece, result
                continue
            early[piece.number] = piece, result
            while due in early:
                yield early.pop(due)
                due += 1

    def _alone(self, chunk: Chunk) -> tuple[Piece, Any]:
        """A chunk of one piece, and its result."""
        piece, *_ = pieces_of(chunk)
        self.prepare(piece)
        left = [piece]
        with self.phase() as phase:
            ((_, result),) = self.results(phase, lambda: left.pop() if left else None)
        self.memory.clear()
        return piece, result

    def graph(self) -> Any:
        """The first graph, for drawing; None without one."""
        return next((function.graph for function in self._compiled.values()), None)

    def compilations(self) -> int:
        """The number of graphs so far."""
        return len(self._compiled)


class WorkerPrediction(WorkerFunction):
    """Runs `predict_step` on workers; the result of a piece is a list with the outputs of each of its batches."""

    def __call__(self, call: CompiledCall) -> tuple[int, list[Any]]:
        """Runs one chunk on one worker; returns the number of its batches and the outputs of each."""
        piece, outputs = self._alone(call.chunks[0])
        return piece.steps, outputs

    def _make(self, piece: Piece) -> Any:
        def run(inputs: Any, i: tf.Tensor) -> Any:
            batch = piece.reader(inputs, i)
            total = piece.samples if piece.samples is not None else sample_count(batch)
            with tf.distribute.ReplicaContext(self._strategy, 0):
                # What it writes is dropped: workers predict in any order, and its generators stay where they are.
                with step_scope(StepContext(0, 1, total, total)), CollectedWrites():
                    return self._model.predict_step(batch)

        return self._traced(run, piece.signature, tf.TensorSpec([], tf.int32))

    def run(self, worker: int, piece: Piece) -> list[Any]:
        """The outputs of each batch, on the host. Context: host, in the thread of a worker."""
        function = self._function(piece)
        inputs = self.memory.inputs(worker, piece)
        answers = []
        for i in range(piece.steps):
            with tf.device(HOST):
                number = tf.constant(i)
            outputs = function(inputs, number)
            with tf.device(HOST):
                answers.append(tf.nest.map_structure(tf.identity, outputs, expand_composites=True))
        return answers
