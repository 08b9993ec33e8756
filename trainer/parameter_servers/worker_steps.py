"""How a worker runs steps: several in one call of a compiled function, each recorded on a server as it is done."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.tensorflow_graphs.graphs import effects, scratch_graph
from ...compat.tensorflow_private.parameter_servers import mark_scheduled
from ...distribute.parameter_servers.shards import on_first_server
from ...distribute.parameter_servers.updates import FIRST_SERVER
from ...distribute.step_context import StepContext, WeightTotals
from ...state.trained_model import TrainedModel
from ..inputs import Chunk
from ..inputs.batch import sample_count
from ..run.loops.compiled_calls import MOST_OF_WORKER
from ..step.variable_placement import accumulates
from .step_results import (
    CustomLogs,
    ResultLayout,
    Totals,
    UpdateCount,
    note_results,
    result_function,
    worker_step,
)
from .worker_function import HOST, Piece, WorkerFunction

_LEDGER_NUMBERS = 2**17  # float64 numbers in one line of the ledger: 1 MiB


class WorkerSteps(WorkerFunction):
    """Runs `train_step` or `test_step` on workers; the result of a piece has the results of its steps. Owns the ledger."""

    def __init__(self, model: TrainedModel, training: bool) -> None:
        if not model._auto_jit and model.jit_compile:
            raise ValueError(
                "`jit_compile=True` compiles a step for one device, but the variables are on parameter servers: leave "
                "`jit_compile` out."
            )
        super().__init__(model)
        self._training = training
        self._step_fn = model.train_step if training else model.test_step
        self._num_workers = self._pool.num_workers
        self._layout: ResultLayout | None = None
        self._ledger: tf.Variable | None = None

    def prepare(self, chunk: Chunk) -> None:
        """Trace the step for the layout of `chunk`; errors in the user's code are raised here. Context: host."""
        if self._layout is None:
            self._layout = ResultLayout(self._model, self._step_logs(chunk))
            self._read = result_function(self._model, self._layout)
            self.most_steps = self.fixed_steps or max(
                1, min(MOST_OF_WORKER, _LEDGER_NUMBERS // self._layout.width)
            )
            shape = [self.lines, self.most_steps, self._layout.width]
            with self._strategy.scope(), on_first_server(shape):
                self._ledger = tf.Variable(tf.zeros(shape, tf.float64), trainable=False, name="ledger")
        super().prepare(chunk)

    def begin(self) -> None:
        """Begin a pass, whose totals begin with the state of the metrics."""
        assert self._layout is not None
        self._totals = Totals(self._layout, self._read)
        self._count = UpdateCount(self._model) if self._training else None

    def commit(self) -> None:
        """Write the totals of all finished steps, and the number of updates if a worker was lost."""
        if self._count is not None:
            self._count.correct(self._totals, self._phase.losses)
        self._totals.commit()

    def _results(self, result: np.ndarray) -> dict[str, Any]:
        """Return the logs after the steps of a piece."""
        self._totals.add(result)
        return self._totals.logs()

    def run(self, worker: int, piece: Piece) -> np.ndarray:
        """Return the results of the piece's steps, `(steps, width)`. Context: host, in the thread of a worker."""
        function = self._compiled[piece.chunk.reader]
        inputs = self._inputs(worker, piece.chunk)
        with tf.device(HOST):  # a copy to a hanging worker would hold the GIL
            steps, at = tf.constant(piece.steps, tf.int32), tf.constant([piece.number, piece.line], tf.int64)
            number = tf.constant(worker, tf.int32)
        results = function(inputs, steps, at, number)
        with tf.device(HOST):
            return tf.identity(results).numpy()

    def _step(
        self, layout: ResultLayout, chunk: Chunk, inputs: Any, i: tf.Tensor, worker: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Return the result of the step on batch `i`, and its logs as it returned them."""
        batch = chunk.reader(inputs, i)
        total = chunk.batch_size if chunk.batch_size is not None else sample_count(batch)
        totals = WeightTotals() if self._training and accumulates(self._model.optimizer) else None
        number = worker if self._num_workers > 1 else 0
        context = StepContext(number, 1, total, total, totals=totals)
        return worker_step(self._model, self._step_fn, batch, context, layout, self._num_workers == 1)

    def _make(self, chunk: Chunk) -> Any:
        layout = self._layout
        assert layout is not None

        def run(inputs: Any, steps: tf.Tensor, place: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
            ledger = _Ledger(self._ledger, place)

            def body(i: tf.Tensor) -> tuple[tf.Tensor]:
                with effects() as done:
                    result, _ = self._step(layout, chunk, inputs, i, worker)
                with tf.control_dependencies(done):
                    ledger.write(i, result)
                return (i + 1,)

            end = tf.while_loop(lambda i: i < steps, body, (ledger.steps_done(),))
            with tf.control_dependencies([tf.nest.flatten(end)[0]]):
                return ledger.read(steps)

        at, count = tf.TensorSpec([2], tf.int64), tf.TensorSpec([], tf.int32)
        return self._trace(run, chunk.signature, count, at, count)

    def _step_logs(self, chunk: Chunk) -> CustomLogs | None:
        """Return the logs of a custom step; None: the results of the metrics."""
        model = self._model
        if not model._has_own_logs(self._training):
            return None
        results: dict[str, Any] = {}
        parts: set[str] = set()  # the names of logs that are parts of a metric's result

        def probe(inputs: Any) -> Any:
            with note_results(model.metrics) as noted:
                _, logs = self._step(ResultLayout(model), chunk, inputs, tf.constant(0), tf.constant(0))
            known = {id(leaf) for result, _ in noted for leaf in keras.tree.flatten(result)}
            parts.update(name for name, value in logs.items() if id(value) in known)
            for result, metric in noted:
                results.update({name: metric for name, value in logs.items() if value is result})
            return logs

        logs = self._trace(probe, chunk.signature).structured_outputs or {}
        with self._strategy.scope(), mark_scheduled(self._strategy), scratch_graph():
            carried = set(model.get_metrics_result())
        if not logs:
            return None
        own = {name: value for name, value in logs.items() if name not in {*results, *(carried & parts)}}
        specs = keras.tree.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), own)
        return CustomLogs(list(logs), specs, results)  # pyright: ignore[reportArgumentType]


class _Ledger:
    """One line of the ledger, in the graph. A result belongs to the piece whose number it begins with.

    A step writes its result after its update, into its row of the table of its piece. A piece that is handed to another
    worker begins after its last result, so a completed step is neither lost nor repeated. Only a step whose worker died
    while writing may have been applied in part before it is repeated.
    """

    def __init__(self, variable: tf.Variable | None, place: tf.Tensor) -> None:
        assert variable is not None
        self._variable = variable
        self._number, self._line = tf.cast(place[0], tf.float64), tf.cast(place[1], tf.int32)

    def _results(self) -> tf.Tensor:
        return tf.raw_ops.ResourceGather(resource=self._variable.handle, indices=self._line, dtype=tf.float64)

    def steps_done(self) -> tf.Tensor:
        """Return the number of completed steps of the piece; int32 scalar."""
        with tf.device(FIRST_SERVER):
            return tf.reduce_sum(tf.cast(tf.equal(self._results()[:, 0], self._number), tf.int32))

    def write(self, i: tf.Tensor, result: tf.Tensor) -> None:
        """Record that step `i` is done."""
        result = tf.concat([self._number[None], result[1:]], 0)
        with tf.device(FIRST_SERVER):
            tf.raw_ops.ResourceScatterNdUpdate(
                ref=self._variable.handle, indices=tf.stack([self._line, i])[None], updates=result[None]
            )

    def read(self, steps: tf.Tensor) -> tf.Tensor:
        """Return the results of the first `steps` steps."""
        with tf.device(FIRST_SERVER):
            return tf.identity(self._results()[:steps])
