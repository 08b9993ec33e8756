"""Prediction on the workers of a coordinator."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from ...compat.graphs import graph_function
from ...compat.parameter_servers import num_workers_of, scheduling
from ...distribute.parameter_servers.strategy import pool_of
from ...distribute.step_context import StepContext
from ..inputs import Chunk
from ..inputs.rows import row_count
from ..step.train_step import predict_on_replica
from .input_pieces import HOST, Piece, WorkerMemory, pieces_of


class WorkerPrediction:
    """Runs `predict_step` on workers; a piece's answer is a list with the outputs of each of its batches."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._compiled: dict[Any, Any] = {}
        self._number = 0
        self.lines = 2 * num_workers_of(self._strategy)
        self.memory = WorkerMemory()

    def __call__(self, chunk: Chunk) -> tuple[int, list[Any]]:
        """Runs the chunk's steps on one worker; returns their number and the outputs of each."""
        piece, *_ = pieces_of(chunk)
        self.prepare(piece)
        with pool_of(self._strategy).phase(self.run, self.memory.forget) as phase:
            phase.put(self.numbered(piece))
            _, outputs = phase.get()
        self.memory.clear()
        return piece.steps, outputs

    def numbered(self, piece: Piece) -> Piece:
        """The piece with a number of its own."""
        self._number += 1
        return dataclasses.replace(piece, number=self._number)

    def done(self, piece: Piece) -> None:
        """The result of a numbered piece has arrived."""

    def prepare(self, piece: Piece) -> None:
        """Traces the step for the layout of `piece`. Context: host."""
        key = (piece.reader, piece.rows)
        if key in self._compiled:
            return

        def run(inputs: Any, i: tf.Tensor) -> Any:
            batch = piece.reader(inputs, i)
            total = piece.rows if piece.rows is not None else row_count(batch)
            with tf.distribute.ReplicaContext(self._strategy, 0):
                return predict_on_replica(self._model, batch, StepContext(0, 1, total, total, False))

        if not self._model.run_eagerly:
            run = graph_function(run, input_signature=[piece.signature, tf.TensorSpec([], tf.int32)])
            with self._strategy.scope(), scheduling(self._strategy):
                run = run.get_concrete_function()
        self._compiled[key] = run

    def run(self, worker: int, piece: Piece) -> list[Any]:
        """The outputs of each batch, on the host. Context: host, in the thread of a worker."""
        function = self._compiled[(piece.reader, piece.rows)]
        inputs = self.memory.inputs(worker, piece)
        answers = []
        for i in range(piece.steps):
            with tf.device(HOST):
                number = tf.constant(i)
            with self._strategy.scope() if self._model.run_eagerly else contextlib.nullcontext():
                outputs = function(inputs, number)
            with tf.device(HOST):
                answers.append(tf.nest.map_structure(tf.identity, outputs, expand_composites=True))
        return answers
