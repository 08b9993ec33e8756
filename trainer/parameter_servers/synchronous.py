"""Synchronous training with backup workers: parts of each batch on several workers, one update of their sum."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.keras_private.training import loss_tracker
from ...compat.tensorflow_graphs.graphs import graph_function
from ...compat.tensorflow_private.parameter_servers import scheduling
from ...distribute.parameter_servers.updates import FIRST_SERVER, colocated_with
from ...distribute.parameter_servers.worker_pool import Phase
from ...distribute.step_context import NOT_AGGREGATED, StepContext, WeightTotals, step_scope
from ...distribute.write_rules import reduce_parts
from ...optimizers.stages.call_options import CallOptions, call_options
from ..inputs.batch import sample_count, slice_samples
from ..partition.steps.step_partition import has_user_code
from ..step.collected_writes import CollectedWrites
from ..step.global_metrics import metrics_of, numbers_of_part
from ..step.replica_slices import replica_bounds
from .pieces import HOST, Piece
from .step_results import snapshot, write_state
from .worker_steps import WorkerSteps

_POLL = 0.005  # seconds between two checks for idle workers


@dataclasses.dataclass(frozen=True)
class Part:
    """Some samples of one step's batch.

    Attributes:
        piece: the batch, as a piece of one step.
        step: int; a number of the step.
        index: int; which part it is.
        first: int; its first sample in the batch.
        last: int; the sample after its last.
        steps: int; for `max_staleness`.
    """

    piece: Piece
    step: int
    index: int
    first: int
    last: int
    steps: int = 1


class SynchronousSteps(WorkerSteps):
    """Computes parts of steps on workers, and the updates on a server.

    There are N = workers - backups parts; part r has samples floor(r B / N) to floor((r + 1) B / N) of the batch. An
    idle worker takes a part, or repeats the part of the slowest. The gradient is sum_r w_r g_r / sum_r w_r. Chen et al.
    2016 ("Revisiting Distributed Synchronous SGD") drop the samples of the slowest workers; here none is lost.
    """

    updates_on_workers = False

    def __init__(self, model: TrainedModel, backups: int) -> None:
        super().__init__(model, training=True)
        self._backups, self._num_parts = backups, self._num_workers - backups
        self._updates: dict[int, Any] = {}
        self._taken: list[tuple[Any, list[Any]]] = []
        self._state: list[Any] = []
        if self._num_parts > 1 and has_user_code(model, "train_step"):
            self._num_parts = 1
            warnings.warn(
                f"The steps of {type(model).__name__} have user code: with `backup_workers={backups}` one worker computes "
                "each batch as a whole, and the others wait. Train without `backup_workers`, or with "
                "MultiWorkerMirroredStrategy, for all of them to share the work.",
                stacklevel=2,
            )

    @property
    def fixed_steps(self) -> int:
        """A piece is one step."""
        return 1

    def results(
        self,
        phase: Phase,
        next_piece: Callable[[], Piece | None],
        arrived: Callable[[Piece], None] = lambda piece: None,
        in_order: bool = False,
    ) -> Iterator[tuple[Piece, np.ndarray]]:
        """One step after the other: (piece, results of its parts)."""
        for number in itertools.count():
            piece = next_piece()
            if piece is None:
                return
            results = self._one_step(phase, piece, number)
            arrived(piece)
            yield piece, results

    def _one_step(self, phase: Phase, piece: Piece, number: int) -> np.ndarray:
        """The results of the parts of step `number`, `(parts, width)`, after applying the sum of the parts."""
        ordered = self._computed(phase, self.parts_of(piece, number))
        applied = self.update(ordered)
        assert self._layout is not None
        results = np.concatenate([self.with_exact_loss(each, ordered, weight) for each, _, weight in ordered])
        self._layout.average_logs(results, np.array([weight[1] for _, _, weight in ordered]))
        if not applied:
            results[:, 1:] = 0.0
        return results

    def _computed(self, phase: Phase, parts: list[Part]) -> list[Any]:
        """The results of the parts of a step: they are handed out, and the slowest again to idle workers."""
        results: dict[int, Any] = {}
        copies = {part.index: 1 for part in parts}
        for part in parts:
            phase.put(part)
        while len(results) < len(parts):
            got = phase.get(_POLL if self._backups else None)
            if got is not None and got[0].step == parts[0].step:
                results.setdefault(got[0].index, got[1])
            missing = [part for part in parts if part.index not in results]
            if self._backups and missing and phase.idle():
                part = phase.slowest(missing)
                if part is not None and copies[part.index] <= self._backups:
                    copies[part.index] += 1
                    phase.put(part)
        phase.discard(lambda waiting: waiting.step == parts[0].step)
        return [results[index] for index in sorted(results)]

    def parts_of(self, piece: Piece, step: int) -> list[Part]:
        """The non-empty parts."""
        if piece.samples is None:
            raise ValueError(
                f"Synchronous steps on parameter servers (`backup_workers={self._backups}`) split batches whose arrays "
                "have the same number of samples, but this batch has different ones: train without `backup_workers`."
            )
        bounds = [replica_bounds(piece.samples, self._num_parts, index) for index in range(self._num_parts)]
        return [Part(piece, step, i, first, last) for i, (first, last) in enumerate(bounds) if last > first]

    def run(self, worker: int, part: Any) -> Any:
        """The result of a part on the host, and its gradients and state on servers. Context: as in the base class."""
        inputs = self.memory.inputs(worker, part.piece)
        function = self._function(part.piece)
        with tf.device(HOST):  # a copy to a hanging worker would hold the GIL
            numbers = [tf.constant(number, tf.int32) for number in (part.first, part.last, worker)]
        result, weight, gradients, state = function(inputs, *numbers)
        # From here on the worker is not needed: each gradient is on the server of its variable.
        there = [
            [_copy(g, getattr(v.value, "device", None) or FIRST_SERVER) for g, v in zip(own, variables)]
            for own, (_, variables) in zip(gradients, self._taken)
        ]
        on_server = (_copy(weight, FIRST_SERVER), there, _copy(state, FIRST_SERVER))
        return _copy(result, HOST).numpy()[None], on_server, _copy(weight, HOST).numpy()

    def update(self, results: list[Any]) -> bool:
        """Applies the sum of the parts; whether it was applied. Context: host."""
        count = len(results)
        if count not in self._updates:
            self._updates[count] = graph_function(self._update)
        with self._strategy.scope(), scheduling(self._strategy), tf.device(HOST):
            return bool(self._updates[count]([there for _, there, _ in results]))

    def with_exact_loss(self, result: np.ndarray, parts: list[Any], weight: np.ndarray) -> np.ndarray:
        """The result of a part, its mean loss weighted with its total sample weight W.

        samples of the part * loss   becomes   samples of the batch * (W of the part / W of the batch) * loss
        """
        assert self._layout is not None
        total = np.sum([each for _, _, each in parts], axis=0)
        tracker = loss_tracker(self._model)
        if tracker is not None and total[0] > 0 and weight[1] > 0:
            factor = (total[1] * weight[0]) / (total[0] * weight[1])
            self._layout.added(result, tracker.total)[...] *= factor
        return result

    def _make(self, piece: Piece) -> Any:
        def run(inputs: Any, first: tf.Tensor, last: tf.Tensor, worker: tf.Tensor) -> Any:
            batch = piece.reader(inputs, tf.constant(0))
            return self._part(slice_samples(batch, first, last), last - first, sample_count(batch), worker)

        number = tf.TensorSpec([], tf.int32)
        return self._traced(run, piece.signature, number, number, number)

    def _part(self, batch: Any, samples: tf.Tensor, total: tf.Tensor, worker: tf.Tensor) -> Any:
        assert self._layout is not None
        taken: list[tuple[Any, list[Any]]] = []
        number = worker if self._num_workers > 1 else 0
        step = StepContext(number, 1, samples, samples, totals=WeightTotals())
        step.notes[NOT_AGGREGATED] = lambda optimizer: ValueError(
            "`aggregate_gradients` was called in a synchronous step on parameter servers, whose parts are summed after it: "
            "pass changes of the gradients to the optimizer, as `gradient_transformers`."
        )
        step.take_gradients = lambda optimizer, pairs: taken.append((optimizer, list(pairs)))
        with tf.distribute.ReplicaContext(self._strategy, 0):
            of_batch = dataclasses.replace(step, global_samples=total)
            numbers = numbers_of_part(metrics_of(self._model), of_batch)
            with step_scope(step), CollectedWrites() as writes, numbers:
                step.writes = writes
                snapshot(self._model, writes, self._layout)
                logs = self._model.train_step(batch)
            result, state = self._layout.of_step(writes, logs, tf.constant(True))
        pairs = [[(g, v) for g, v in own if g is not None] for _, own in taken]
        self._taken = [(optimizer, [v for _, v in own]) for (optimizer, _), own in zip(taken, pairs)]
        self._state = [variable for variable, _ in state]
        weight = samples if step.weight_total is None else step.weight_total
        weights = tf.stack([tf.cast(weight, tf.float64), tf.cast(samples, tf.float64)])
        return result, weights, [[g for g, _ in own] for own in pairs], [value for _, value in state]

    def _update(self, parts: list[Any]) -> tf.Tensor:
        weights = tf.stack([weight for weight, _, _ in parts])
        shares = tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=0))
        step = StepContext(0, 1, 1, 1)
        with tf.distribute.ReplicaContext(self._strategy, 0), step_scope(step):
            for index, (optimizer, variables) in enumerate(self._taken):
                of_parts = [gradients[index] for _, gradients, _ in parts]
                total = []
                for variable, *each in zip(variables, *of_parts):
                    with colocated_with(variable.value):
                        total.append(_weighted_sum(each, shares[:, 0]))
                with call_options(CallOptions(weight_total=tf.reduce_sum(weights[:, 0]))):
                    optimizer.apply(total, variables)
            applied = tf.constant(True) if step.applied is None else step.applied
            of_variables = zip(self._state, zip(*(state for _, _, state in parts)))
            values = [_reduced(v, list(each), shares[:, 1]) for v, each in of_variables]
            write_state(list(zip(self._state, values)), {}, applied, alone=True)
        return applied


def _copy(structure: Any, device: str) -> Any:
    with tf.device(device):
        return tf.nest.map_structure(tf.identity, structure, expand_composites=True)


def _weighted_sum(gradients: list[Any], shares: tf.Tensor) -> Any:
    if all(isinstance(g, tf.IndexedSlices) for g in gradients):
        values = [g.values * tf.cast(shares[i], g.values.dtype) for i, g in enumerate(gradients)]
        indices = [tf.cast(g.indices, tf.int64) for g in gradients]
        return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), gradients[0].dense_shape)
    dense = [tf.convert_to_tensor(g) for g in gradients]
    return tf.add_n([g * tf.cast(shares[i], g.dtype) for i, g in enumerate(dense)])


def _reduced(variable: keras.Variable, values: list[tf.Tensor], shares: tf.Tensor) -> tf.Tensor:
    """The concatenation of all parts, all of them non-empty."""
    with colocated_with(variable.value):
        old = tf.convert_to_tensor(variable.value)
    return reduce_parts(variable, values, tf.unstack(shares), [True] * len(values), old)
