"""Predicts batches: one in a call, or many in a loop once that pays."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import graph_for, graph_function
from ....distribute.arguments import shown
from ....distribute.gathering import gather_outputs
from ....distribute.hardware.devices import wait_for_accelerators
from ....distribute.step_context import this_step
from ....distribute.workers.agreement import spans_workers
from ....distribute.workers.peer_monitor import monitored_collective
from ....state.trained_model import TrainedModel
from ...inputs.batch import concat_samples
from ...inputs.checks import check_samples
from ...inputs.sources.source import Chunk
from ...partition.steps.step_partition import ModelPartition
from ...partition.steps.whole_step import WholeStep
from ...step.replica_slices import ReplicaSlices
from ...step.train_step import Tracing, replica_function
from .compiled_calls import CompiledCall, noted
from .drawn_batches import batches_of
from .predict_loop import PredictLoop


class PredictFunction:
    """Runs steps of prediction on global batches; the samples of the result are in the order of the batch.

    `predict_step(data) -> outputs` is called in replica context. A layer that draws random numbers in it moves its generator
    on, so that the next batch gets others. The stages of a pipeline predict one batch in a call.
    """

    def __init__(self, model: TrainedModel, predict_step: Callable[[Any], Any]) -> None:
        self._model, self._predict_step = model, predict_step
        self._strategy = model.distribute_strategy
        self._alone = self._strategy.num_replicas_in_sync == 1
        self._in_loops = self._alone and model._pipeline is None and not model.run_eagerly
        self._compiled: dict[Any, Any] = {}
        self._loops: dict[Any, PredictLoop] = {}
        self._partition = ModelPartition(model, "predict_step", predict_step)
        self._reached: int | None = None

    def __call__(self, call: CompiledCall, step: int = 0) -> tuple[int, list[Any]]:
        """The number of batches, and their outputs, in order: of each, or of several concatenated.

        `step` is the number of earlier batches; errors name their own.
        """
        done, outputs = 0, []
        for chunk in call.chunks:
            with monitored_collective(ran_before=bool(self._compiled)), noted(self.reached, step + done):
                ran, new = self._run(chunk)
            done += ran
            outputs += new
            if ran < chunk.steps:
                break
        return done, outputs

    def reached(self) -> int | None:
        """After an error: the number of predicted batches of the last call; None where it is not known."""
        return self._reached

    def compilations(self) -> int:
        """The number of graphs so far, without those of loops; 0 where every batch is predicted eagerly."""
        return sum(function.experimental_get_tracing_count() for function in self._compiled.values())

    def _run(self, chunk: Chunk) -> tuple[int, list[Any]]:
        self._reached = None
        loop = self._loop(chunk)
        if loop is not None and loop.pays(chunk.steps):
            done, concatenated = loop(chunk)
            if concatenated is not None:
                return done, [concatenated] if done else []
        began = time.perf_counter()
        outputs = list(self._one_by_one(chunk))
        if loop is not None:
            wait_for_accelerators()
            loop.note(outputs, began)
        return len(outputs), outputs

    def _loop(self, chunk: Chunk) -> PredictLoop | None:
        """A function that predicts the chunk's batches in one call: those of one replica."""
        layout = chunk.reader, chunk.batch_size, chunk.open_ended
        if not self._in_loops or chunk.per_worker or chunk.signature is None:
            return None
        if layout not in self._loops:
            step = functools.partial(self._outputs, samples=chunk.batch_size)
            self._loops[layout] = PredictLoop(step, chunk)
        return self._loops[layout]

    def _one_by_one(self, chunk: Chunk) -> Iterator[Any]:
        """The outputs for each batch until the data ends; of several workers' own data those of all samples.

        The compiled step reads the batch itself, unless the data may end.
        """
        reader, samples, parts, drawn = chunk.reader, chunk.batch_size, chunk.part_reader, None

        def read(inputs: Any, i: tf.Tensor) -> Any:
            part = parts and functools.partial(parts, inputs, i)
            return self._outputs(reader(inputs, i), samples, part=part)

        batches = batches_of(chunk, self._strategy, functools.partial(self._function, "rows"))
        key, fn = ("batch", self._outputs) if chunk.open_ended else ((reader, samples), read)
        step = self._function(key, fn, reduce_retracing=True)
        for self._reached in range(chunk.steps):
            given: Any = chunk.inputs, tf.constant(self._reached)
            if chunk.open_ended:
                drawn = batches.take(reader(*given), drawn)
                if not batches.exists(drawn):
                    return
                batch, _, *counts = batches.arguments(drawn)
                given = batch, None, *counts
            yield graph_for(step, given)(*given)

    def _function(self, key: Any, fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """`fn`, compiled once for each key."""
        if self._model.run_eagerly:
            return fn
        if key not in self._compiled:
            self._compiled[key] = graph_function(fn, **options)
        return self._compiled[key]

    def _outputs(
        self, batch: Any, samples: int | None, worker_samples: tf.Tensor | None = None, part: Any = None
    ) -> Any:
        strategy = self._strategy
        custom = self._model._overrides_step("predict_step")
        after = []
        if not (self._alone or custom) and part is None:
            after = check_samples(batch, strategy.num_replicas_in_sync, inputs_alone=True)
        own = self._partition.of(batch)
        whole, predict_step = isinstance(own, WholeStep), own or self._predict_step
        if own is not None and samples is None and part is None:
            after = [*after, *own.check_samples(batch)]
        slices = ReplicaSlices(strategy, batch, samples, worker_samples, part, in_units=custom, whole=whole)
        several_workers = spans_workers(strategy)

        def predict(data: Any) -> Any:
            outputs = predict_step(data)
            if any(leaf is None for leaf in keras.tree.flatten(outputs)):
                raise TypeError(
                    "`predict_step` must return tensors, or a dict, list or tuple of them: is a `return` missing? "
                    f"Received: {shown(outputs)}"
                )
            return gather_outputs(outputs, this_step()) if several_workers else outputs

        outputs = strategy.run(
            replica_function(strategy, predict, slices.of_this_replica, Tracing(after=after))
        )
        if self._alone:
            return outputs
        leaves = [strategy.experimental_local_results(leaf) for leaf in keras.tree.flatten(outputs)]
        if several_workers:
            return keras.tree.pack_sequence_as(outputs, [parts[0] for parts in leaves])
        with tf.device("CPU:0"):  # each replica sends its result there
            return keras.tree.pack_sequence_as(outputs, [concat_samples(list(parts)) for parts in leaves])
