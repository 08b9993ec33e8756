"""How steps are run: several in one call of a compiled function, under any strategy.

There is one compiled function for one layout of input. It runs up to k steps and returns the logs of the last.
"""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import tensorflow as tf

from ...compat.graphs import effects, first_graph, graph_function
from ...compat.random_state import thread_state
from ...compat.training import compiled_loss
from ...compat.variables import plain_variable
from ...distribute.replicas import runs_in_threads
from ...distribute.step_context import StepContext
from ...distribute.workers.peer_watch import meeting
from ..inputs.readers import for_xla
from ..inputs.rows import row_count
from ..inputs.source import Chunk
from ..step.global_metrics import exact_updates
from ..step.global_regularizers import exact_regularizers
from ..step.replica_slices import run_on_replicas
from ..step.train_step import replica_step
from ..step.variable_placement import accumulates
from ..step.xla_random import as_the_graph_draws
from . import worker_union as union
from .batch_stacks import UNKNOWN, Stacks
from .optional_leaves import has_absent, on_present, present


def _read_stack(stack: Any, i: tf.Tensor) -> Any:
    """The reader of `Stacks`: batch `i` of a stack."""
    return tf.nest.map_structure(lambda batches: tf.gather(batches, i), stack)


def _compiles(leaf: Any) -> bool:
    """Whether XLA takes it: a tensor of numbers. Its shape need not be known: XLA compiles for each that comes."""
    return leaf is None or (isinstance(leaf, tf.Tensor) and leaf.dtype not in (tf.string, tf.variant))


class StepFunction:
    """Runs `train_step` or `test_step` on global batches, in loops in the graph. Owns the compiled functions.

    Args:
        model: the model.
        training: True for `train_step`, False for `test_step`.
    """

    def __init__(self, model: Any, training: bool) -> None:
        self._model = model
        self._training = training
        self._alone = model.distribute_strategy.num_replicas_in_sync == 1
        self._compiled: dict[Any, Any] = {}
        self._one_by_one: dict[Any, Any] = {}  # what runs a single step; None: steps share a loop
        self._shapes_vary = False
        self.way = "graph"  # or "xla": see tuner.py
        self.choices: dict[Any, Any] = {}  # what was measured, for each layout of the input
        self.full_rows: int | None = None  # a last partial batch is not worth compiling for
        self._whole = False
        self.fresh = False  # whether the last execution compiled something
        self.usual_steps = 1
        with tf.device("CPU:0"):
            self._reached = plain_variable(tf.constant(UNKNOWN))

    def __call__(self, chunk: Chunk) -> tuple[int, dict[str, Any]]:
        """Runs the chunk's steps.

        Returns:
            The steps that were run (fewer than asked for when an open-ended input ended) and the logs after the last.
        """
        key = self._key(chunk)
        familiar = key in self._compiled
        if not familiar:
            self._compiled[key] = self._make(chunk)
        self.fresh = self.fresh or not familiar
        with meeting(familiar):
            single = self._single(key, chunk)
            if single is None:
                return self._call(self._compiled[key], chunk)
            return self._steps_of_their_own(single, chunk)

    def reached(self) -> int | None:
        """After an error: the steps of the last call that were run before; None where that is not known."""
        steps = int(self._reached)
        return None if steps == UNKNOWN else steps

    def _key(self, chunk: Chunk) -> Any:
        stacked = chunk.usual_rows if self._stacks(chunk) else None
        return chunk.reader, chunk.rows, chunk.open_ended, self.way, stacked

    def _stacks(self, chunk: Chunk) -> bool:
        """Whether XLA is given stacks of the chunk's batches, which it cannot draw by itself."""
        return (
            self.way == "xla" and self._alone and chunk.usual_rows is not None and not self._model.run_eagerly
        )

    def operations(self, chunk: Chunk) -> set[str]:
        """The types of the operations that the chunk's steps are made of, in the graph and the functions it calls.

        Only for chunks with a signature.
        """
        key = self._key(chunk)
        if key not in self._compiled:
            self._compiled[key] = self._make(chunk)
        function = self._compiled[key]
        function = function.loop if isinstance(function, Stacks) else function
        graph = function.get_concrete_function().graph
        names = {operation.type for operation in graph.get_operations()}
        for called in graph.as_graph_def(add_shapes=False).library.function:
            names.update(node.op for node in called.node_def)
        return names

    def _call(self, function: Any, chunk: Chunk) -> tuple[int, dict[str, Any]]:
        in_xla = self.way == "xla" and self._alone
        self._reached.assign(UNKNOWN if in_xla and not isinstance(function, Stacks) else 0)
        if in_xla:
            with tf.device(self._device()):  # XLA compiles for one, which need not be the first
                return self._run(function, chunk)
        return self._run(function, chunk)

    def _device(self) -> str:
        """Where the model's variables are, on one replica."""
        return next((v.value.device for v in self._model.variables), "")

    def _run(self, function: Any, chunk: Chunk) -> tuple[int, dict[str, Any]]:
        if self._model.run_eagerly or isinstance(function, Stacks):
            return function(chunk.inputs, chunk.steps)
        if chunk.open_ended:
            done, logs = function(chunk.inputs, tf.constant(chunk.steps, tf.int32))
            return int(done), logs
        inputs = present(chunk.inputs) if has_absent(chunk.signature) else chunk.inputs
        return chunk.steps, function(inputs, tf.constant(chunk.steps, tf.int32))

    def _single(self, key: Any, chunk: Chunk) -> Any:
        """What runs one step in a call of its own, where several in one loop cannot be run; otherwise None.

        TensorFlow keeps the shape of a collective for a whole call. So where replicas gather rows or slices of which there
        may be more in one step than in the next, each step needs a call. It is known once the loop has been traced.
        """
        if self._model.run_eagerly or self._alone:
            return None
        if key not in self._one_by_one:
            self._shapes_vary, loop = False, self._compiled[key]
            signed = chunk.signature is not None and not chunk.open_ended
            loop.get_concrete_function(
                *(() if signed else (chunk.inputs, tf.constant(chunk.steps, tf.int32)))
            )
            single = loop if chunk.open_ended else graph_function(self._step(chunk.reader, chunk.rows))
            self._one_by_one[key] = single if self._shapes_vary else None
        return self._one_by_one[key]

    def _steps_of_their_own(self, single: Any, chunk: Chunk) -> tuple[int, dict[str, Any]]:
        done, logs = 0, {}
        for i in range(chunk.steps):
            self._reached.assign(i)
            if chunk.open_ended:
                ran, new = single(chunk.inputs, tf.constant(1, tf.int32))
                if not int(ran):
                    break
                logs = new
            else:
                logs = single(chunk.inputs, tf.constant(i, tf.int32))
            done += 1
        return done, logs

    def graph(self) -> Any:
        """The graph that was made first, to be drawn; None where there is none."""
        graphs = (first_graph(function) for function in self._functions())
        return next((graph for graph in graphs if graph is not None), None)

    def compilations(self) -> int:
        """How many graphs were made so far; 0 where every step runs eagerly."""
        counts = (getattr(f, "experimental_get_tracing_count", None) for f in self._functions())
        return sum(count() for count in counts if count is not None)

    def _functions(self) -> Any:
        for function in self._compiled.values():
            yield from (function.loop, function.single) if isinstance(function, Stacks) else (function,)

    def _make(self, chunk: Chunk) -> Any:
        if runs_in_threads(self._model.distribute_strategy):
            thread_state()  # its variable, made in a trace, would cost another trace
        reader, rows, open_ended = chunk.reader, chunk.rows, chunk.open_ended
        if self._model.run_eagerly:
            return self._eager_union(reader) if chunk.per_worker else self._eager(reader, rows, open_ended)
        if chunk.per_worker:
            return graph_function(self._union_loop(reader))
        if self._stacks(chunk):
            loop = self._as_a_whole(self._counted_loop(_read_stack, chunk.usual_rows, compiles=False))
            single = lambda batch: self._logs(self.one_step(batch, None))  # noqa: E731
            return Stacks(chunk, loop, single, self._reached, self._device())
        if open_ended:
            return graph_function(self._open_loop(reader, rows))
        signature = chunk.signature
        in_xla = (
            self.way == "xla" and rows is not None and (self._model.jit_compile or rows == self.full_rows)
        )
        whole = in_xla and self._alone
        body = self._counted_loop(reader, rows, compiles=in_xla and not self._alone)
        if has_absent(signature):
            body, signature = on_present(body, signature), present(signature)
        if signature is not None and whole:
            body = self._as_a_whole(body)
            return graph_function(
                body, jit_compile=True, input_signature=[signature, tf.TensorSpec([], tf.int32)]
            )
        if signature is None:
            return graph_function(body, reduce_retracing=True)
        return graph_function(body, input_signature=[signature, tf.TensorSpec([], tf.int32)])

    def one_step(
        self,
        batch: Any,
        rows: int | None,
        worker_rows: tf.Tensor | None = None,
        compiles: bool = False,
        after: list[Any] | None = None,
    ) -> dict[str, Any]:
        """One step on a global batch, in cross-replica context; returns the logs that metrics do not carry.

        With `worker_rows` (int32 `[workers]`), `batch` holds this worker's rows only. With `compiles`, XLA compiles what
        each of several replicas computes; it also does where the model was compiled with `jit_compile=True`.
        Nothing of the step, not even a random number, begins before the operations in `after` have ended.
        """
        model, strategy = self._model, self._model.distribute_strategy
        for hook in model.__dict__.get("_step_hooks", {}).get("train" if self._training else "test", ()):
            hook(batch)
        step_fn = model.train_step if self._training else model.test_step
        state = thread_state() if runs_in_threads(strategy) else None
        drawn = [] if after is None else after

        def on_replica(data: Any, step: StepContext) -> dict[str, Any]:
            if state is not None:
                state.enter()
            step.compiles = not self._alone and (compiles or model.jit_compile)
            # No name scope, so that the tags of summaries do not tell how steps are looped.
            with tf.name_scope(""), tf.control_dependencies(drawn):
                logs = replica_step(model, step_fn, data, step)
            self._shapes_vary = self._shapes_vary or step.shapes_vary
            return logs

        total = rows if rows is not None else row_count(batch)
        if worker_rows is not None:
            total = tf.reduce_sum(worker_rows)
        weigh = self._training and accumulates(model.optimizer)
        loss = compiled_loss(model)
        losses = [] if loss is None else loss.metrics
        if self._alone:
            with exact_updates(losses, losses):
                logs = self._on_one(on_replica, batch, total, weigh)
        else:
            own_logs = model.has_own_logs(self._training)
            with exact_updates(model.metrics, losses, own_logs), exact_regularizers(model):
                logs = run_on_replicas(strategy, on_replica, batch, total, self._training, weigh, worker_rows)
        if not logs or not model.has_own_logs(self._training):
            return {}
        if self._alone:
            return logs
        return keras.tree.map_structure(lambda v: strategy.reduce("SUM", v, axis=None), logs)  # pyright: ignore[reportReturnType]

    def _on_one(self, on_replica: Any, batch: Any, total: Any, weigh: bool) -> dict[str, Any]:
        """The step of one replica; with `jit_compile=True` compiled as a whole, unless the loop around it is."""
        strategy = self._model.distribute_strategy

        leaves = keras.tree.flatten(batch)
        by_itself = self._model.jit_compile and not self._model.run_eagerly and not self._whole
        by_itself = by_itself and all(_compiles(leaf) for leaf in leaves)

        def traced(data: Any, step: StepContext) -> dict[str, Any]:
            step.in_xla = by_itself or self._whole
            with as_the_graph_draws() if step.in_xla else contextlib.nullcontext():
                return on_replica(data, step)

        def run(batch: Any, total: Any) -> dict[str, Any]:
            return run_on_replicas(strategy, traced, batch, total, self._training, weigh)

        if not by_itself:
            return run(batch, total)

        def compiled(present: list[Any]) -> dict[str, Any]:
            rest = iter(present)
            whole = [None if leaf is None else next(rest) for leaf in leaves]
            nest = keras.tree.pack_sequence_as(batch, whole)
            return run(nest, total if isinstance(total, int) else row_count(nest))

        with tf.device(self._device()):
            return graph_function(compiled, jit_compile=True)([leaf for leaf in leaves if leaf is not None])

    def _as_a_whole(self, body: Any) -> Any:
        """`body`, whose steps are compiled together with the loop around them."""

        def run(inputs: Any, steps: tf.Tensor) -> dict[str, Any]:
            self._whole = True
            try:
                with for_xla():
                    return body(inputs, steps)
            finally:
                self._whole = False

        return run

    def _logs(self, custom: dict[str, Any]) -> dict[str, Any]:
        return custom if custom else self._model.get_metrics_result()

    def _begin(self, i: tf.Tensor) -> None:
        """Notes that step `i` of the call begins. Not inside of XLA, which would not let it be seen."""
        if not self._whole:
            self._reached.assign(i)

    def _step(self, reader: Any, rows: int | None) -> Any:
        return lambda inputs, i: self._logs(self.one_step(reader(inputs, i), rows))

    def _counted_loop(self, reader: Any, rows: int | None, compiles: bool) -> Any:
        def run(inputs: Any, steps: tf.Tensor) -> dict[str, Any]:
            def body(i: tf.Tensor, logs: Any) -> Any:
                self._begin(i)
                with effects() as drawn:
                    batch = reader(inputs, i)
                new = self.one_step(batch, rows, compiles=compiles, after=drawn)
                return i + 1, new if new else logs

            start = self._empty_logs(lambda: reader(inputs, tf.constant(0)), rows)
            _, custom = tf.while_loop(lambda i, logs: i < steps, body, (tf.constant(0), start))
            return self._logs(custom)

        return run

    def _open_loop(self, reader: Any, rows: int | None) -> Any:
        def run(inputs: Any, steps: tf.Tensor) -> Any:
            first = reader(inputs, tf.constant(0))
            empty = tf.experimental.Optional.empty(first.element_spec)

            def body(i: tf.Tensor, batch: Any, logs: Any) -> Any:
                self._begin(i)
                with effects() as step:
                    new = self.one_step(batch.get_value(), rows)
                with tf.control_dependencies(step):  # it is whole before an error of the input can come
                    self._begin(i + 1)
                    more = tf.cond(i + 1 < steps, lambda: reader(inputs, i + 1), lambda: empty)
                return i + 1, more, new if new else logs

            start = self._empty_logs(first.get_value, rows)
            done, _, custom = tf.while_loop(
                lambda i, batch, logs: tf.logical_and(i < steps, batch.has_value()),
                body,
                (tf.constant(0), first, start),
            )
            return done, self._logs(custom)

        return run

    def _union_loop(self, reader: Any) -> Any:
        """The loop for input that each worker reads for itself; see `union`."""
        strategy = self._model.distribute_strategy

        def run(inputs: Any, steps: tf.Tensor) -> Any:
            first = reader(inputs, tf.constant(0))
            empty = tf.experimental.Optional.empty(first.element_spec)

            def body(i: tf.Tensor, batch: Any, counts: tf.Tensor, logs: Any) -> Any:
                self._begin(i)
                with effects() as step:
                    new = self.one_step(batch, None, counts)
                with tf.control_dependencies(step):
                    self._begin(i + 1)
                    more = tf.cond(i + 1 < steps, lambda: reader(inputs, i + 1), lambda: empty)
                batch, rows = union.own_batch(more, batch)
                return i + 1, batch, union.rows_of_workers(strategy, rows), new if new else logs

            batch, rows = union.own_batch(first, union.empty_batch(first.element_spec))
            counts = union.rows_of_workers(strategy, rows)
            start = self._empty_logs(lambda: batch, None, lambda: counts)
            done, _, _, custom = tf.while_loop(
                lambda i, batch, counts, logs: tf.logical_and(i < steps, tf.reduce_sum(counts) > 0),
                body,
                (tf.constant(0), batch, counts, start),
            )
            return done, self._logs(custom)

        return run

    def _eager_union(self, reader: Any) -> Any:
        strategy = self._model.distribute_strategy

        def run(inputs: Any, steps: int) -> tuple[int, dict[str, Any]]:
            custom: dict[str, Any] = {}
            batch = None
            for i in range(steps):
                self._begin(tf.constant(i))
                more = reader(inputs, tf.constant(i))
                batch, rows = union.own_batch(more, batch or union.empty_batch(more.element_spec))
                counts = union.rows_of_workers(strategy, rows)
                if int(tf.reduce_sum(counts)) == 0:
                    return i, self._logs(custom) if i else {}
                custom = self.one_step(batch, None, counts)
            return steps, self._logs(custom)

        return run

    def _empty_logs(self, batch: Any, rows: int | None, counts: Any = lambda: None) -> dict[str, Any]:
        """Zeros with the structure of the logs that a user's step returns; nothing for the logs of metrics."""
        model = self._model
        if not model.has_own_logs(self._training):
            return {}
        probe = graph_function(lambda: self.one_step(batch(), rows, counts()))
        logs = probe.get_concrete_function().structured_outputs
        return keras.tree.map_structure(lambda t: tf.zeros(t.shape, t.dtype), logs)  # pyright: ignore[reportReturnType]

    def _eager(self, reader: Any, rows: int | None, open_ended: bool) -> Any:
        def run(inputs: Any, steps: int) -> tuple[int, dict[str, Any]]:
            custom: dict[str, Any] = {}
            for i in range(steps):
                self._begin(tf.constant(i))
                batch = reader(inputs, tf.constant(i))
                if open_ended:
                    if not batch.has_value():
                        return i, self._logs(custom) if i else {}
                    batch = batch.get_value()
                custom = self.one_step(batch, rows)
            return steps, self._logs(custom)

        return run
