"""How batches are predicted: one in a call, or many in a loop once that pays."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

from ...compat.graphs import graph_function
from ...compat.random_state import thread_state
from ...distribute.replicas import runs_in_threads
from ...distribute.step_context import StepContext
from ...distribute.workers.agreement import spans_workers
from ...distribute.workers.peer_watch import meeting
from ..inputs.rows import concat_rows, row_count
from ..inputs.source import Chunk
from ..step.gathered_rows import rows_of_all_workers
from ..step.replica_slices import run_on_replicas
from ..step.train_step import predict_on_replica
from . import worker_union as union
from .optional_leaves import has_absent
from .predict_loop import PredictLoop


class PredictFunction:
    """Runs `predict_step` on global batches; the rows of the answer are in the order of the batch."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._compiled: dict[Any, Any] = {}
        self._loops: dict[Any, PredictLoop] = {}
        self._reached: int | None = None

    def __call__(self, chunk: Chunk) -> tuple[int, list[Any]]:
        """Runs the chunk's steps; returns their number and their outputs, in order: of each, or of several joined."""
        with meeting(familiar=bool(self._compiled)):
            return self._call(chunk)

    def reached(self) -> int | None:
        """After an error: the batches of the last call that were predicted before; None where that is not known."""
        return self._reached

    def _call(self, chunk: Chunk) -> tuple[int, list[Any]]:
        outputs: list[Any] = []
        self._reached = None
        if chunk.per_worker:
            return self._union(chunk)
        loop = self._loop(chunk)
        if loop is not None and loop.pays(chunk.steps):
            joined = loop(chunk)
            if joined is not None:
                return chunk.steps, [joined]
        began = time.perf_counter()
        for i in range(chunk.steps):
            self._reached = i
            if chunk.open_ended:
                batch = chunk.reader(chunk.inputs, tf.constant(i))
                if not batch.has_value():
                    break
                outputs.append(self._function(None, None)(batch.get_value(), tf.constant(i)))
            else:
                outputs.append(self._function(chunk.reader, chunk.rows)(chunk.inputs, tf.constant(i)))
        if loop is not None:
            loop.note(outputs, began)
        return len(outputs), outputs

    def _loop(self, chunk: Chunk) -> PredictLoop | None:
        """What can predict the chunk's batches in one call: those of one replica with a fixed number of rows."""
        model, reader, rows = self._model, chunk.reader, chunk.rows
        alone = model.distribute_strategy.num_replicas_in_sync == 1 and model._pipeline is None
        if not alone or model.run_eagerly or chunk.open_ended or rows is None or chunk.signature is None:
            return None
        if has_absent(chunk.signature):
            return None
        key = reader, rows
        if key not in self._loops:
            self._loops[key] = PredictLoop(lambda inputs, i: self._outputs(reader(inputs, i), rows), rows)
        return self._loops[key]

    def _union(self, chunk: Chunk) -> tuple[int, list[Any]]:
        """Input that each worker reads for itself; the answer is that of all, in the order of the workers."""
        outputs: list[Any] = []
        batch = None
        for i in range(chunk.steps):
            self._reached = i
            more = chunk.reader(chunk.inputs, tf.constant(i))
            batch, rows = union.own_batch(more, batch or union.empty_batch(more.element_spec))
            counts = self._rows_of_workers(rows)
            if int(tf.reduce_sum(counts)) == 0:
                break
            if "union" not in self._compiled:
                self._compiled["union"] = (
                    self._outputs
                    if self._model.run_eagerly
                    else graph_function(self._outputs, reduce_retracing=True)
                )
            outputs.append(self._compiled["union"](batch, None, counts))
        return len(outputs), outputs

    def _rows_of_workers(self, rows: tf.Tensor) -> tf.Tensor:
        strategy = self._model.distribute_strategy
        if "rows" not in self._compiled:
            self._compiled["rows"] = graph_function(lambda own: union.rows_of_workers(strategy, own))
        return self._compiled["rows"](rows)

    def _function(self, reader: Any, rows: int | None) -> Any:
        key = (reader, rows)
        if key not in self._compiled:

            def run(inputs: Any, i: tf.Tensor) -> Any:
                return self._outputs(inputs if reader is None else reader(inputs, i), rows)

            if not self._model.run_eagerly:
                run = graph_function(run, reduce_retracing=True)
            self._compiled[key] = run
        return self._compiled[key]

    def _outputs(self, batch: Any, rows: int | None, worker_rows: tf.Tensor | None = None) -> Any:
        model, strategy = self._model, self._model.distribute_strategy
        state = thread_state() if runs_in_threads(strategy) else None

        def on_replica(data: Any, step: StepContext) -> Any:
            if state is not None:
                state.enter()
            outputs = predict_on_replica(model, data, step)
            return rows_of_all_workers(outputs, step) if several_workers else outputs

        several_workers = spans_workers(strategy)
        total = rows if rows is not None else row_count(batch)
        if worker_rows is not None:
            total = tf.reduce_sum(worker_rows)
        outputs = run_on_replicas(strategy, on_replica, batch, total, training=False, worker_rows=worker_rows)
        if strategy.num_replicas_in_sync == 1:
            return outputs
        leaves = [strategy.experimental_local_results(leaf) for leaf in keras.tree.flatten(outputs)]
        if several_workers:
            return keras.tree.pack_sequence_as(outputs, [parts[0] for parts in leaves])
        return keras.tree.pack_sequence_as(outputs, [concat_rows(list(parts)) for parts in leaves])
