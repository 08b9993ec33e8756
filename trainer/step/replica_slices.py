"""Splits the samples of a global batch over replicas."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.wrong_use import WrongUse
from ...distribute.gathering import gather_for_step
from ...distribute.mesh import mesh_of
from ...distribute.replicas import local_replica_index
from ...distribute.step_context import ReplicaSamples, StepContext, step_scope
from ...distribute.workers.agreement import first_local_replica, place_among_workers
from ..inputs.batch import sample_count, slice_samples, slice_units, unit_count


def replica_bounds(global_samples: Any, num_replicas: int, replica: Any) -> tuple[Any, Any]:
    """Return the samples `[first, last)` of `replica`: floor(r B / R) to floor((r + 1) B / R). Ints stay ints."""
    return (replica * global_samples) // num_replicas, ((replica + 1) * global_samples) // num_replicas


def or_first_sample(first: Any, last: Any) -> tuple[Any, Any]:
    """Return the samples `[first, last)`; the first of all if there are none. Ints stay ints."""
    samples = last - first
    if isinstance(samples, int):
        return (first, last) if samples else (0, 1)
    return tf.where(samples > 0, first, 0), tf.where(samples > 0, last, 1)


class ReplicaSlices:
    """One global batch, split into the samples of each replica.

    Attributes:
        global_samples: int or int32 scalar tensor; samples of the global batch; its units, where its arrays have different
            numbers of samples and there are several replicas (see `inputs/batch.py`).

    Args:
        strategy: shares the batch.
        batch: nest of tensors (dense, ragged or sparse) and Nones: the whole global batch, or this worker's part of it.
        samples: of the global batch; None: not known while tracing.
        worker_samples: int32 `(workers,)`, where `batch` holds this worker's samples only: the samples of each worker.
        part: `part(replica, first, last)` reads samples `first` to `last - 1` on a replica of this worker; None: they are
            sliced from `batch`, on the host.
        in_units: whether the arrays of a batch may differ in samples. Not with `samples`, `worker_samples` or `part`.
        whole: whether the first replica of each worker gets the whole batch, and all samples count on the first of all.

    Context: cross-replica, in a `tf.function` or eager.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        batch: Any,
        samples: int | None,
        worker_samples: tf.Tensor | None = None,
        part: Callable[[int, Any, Any], Any] | None = None,
        in_units: bool = False,
        whole: bool = False,
    ) -> None:
        self._strategy, self._batch, self._worker_samples = strategy, batch, worker_samples
        self._part, self._whole = part, whole
        self._replicas = strategy.num_replicas_in_sync
        self._in_units = (
            in_units and self._replicas > 1 and samples is None and worker_samples is None and part is None
        )
        if worker_samples is not None:
            self.global_samples: Any = tf.reduce_sum(worker_samples)
        elif self._in_units:
            self.global_samples = unit_count(batch)
        else:
            self.global_samples = sample_count(batch) if samples is None else samples

    def of_this_replica(self) -> tuple[Any, ReplicaSamples]:
        """Return this replica's batch, and the range of its samples. Context: replica.

        A replica without samples gets the first sample of the batch.
        """
        if self._replicas == 1:
            return self._batch, ReplicaSamples(0, 1, self.global_samples, self.global_samples)
        here = local_replica_index()
        replica = first_local_replica(self._strategy) + here
        data = self._slice(replica, here)
        if self._whole:
            if self._worker_samples is not None:  # each worker has read its own
                with step_scope(StepContext(**vars(self._own_samples(replica)))):
                    data = gather_for_step(data)
            samples, before = (self.global_samples, 0) if replica == 0 else (0, self.global_samples)
            return data, ReplicaSamples(replica, self._replicas, samples, self.global_samples, before)
        return data, self._own_samples(replica)

    def _own_samples(self, replica: int) -> ReplicaSamples:
        first, last, before = self._bounds(replica)
        return ReplicaSamples(replica, self._replicas, last - first, self.global_samples, before + first)

    def _slice(self, replica: int, here: int) -> Any:
        with tf.device("CPU:0"):
            first, last, _ = self._bounds(replica)
            if self._whole and self._worker_samples is None:
                first, last = (0, 1) if here else (0, self.global_samples)
            first, last = or_first_sample(first, last)
        if self._part is not None:  # reads also the arrays that are None in the batch
            part = self._part(here, first, last)
            return keras.tree.map_structure(lambda a, b: None if a is None else b, self._batch, part)
        if self._in_units:
            return slice_units(self._batch, first, last, self.global_samples, device="CPU:0")
        return slice_samples(self._batch, first, last, device="CPU:0")

    def _bounds(self, replica: Any) -> tuple[Any, Any, Any]:
        """Return the samples `[first, last)` of a replica in the batch, and the number of samples of earlier workers."""
        mesh = mesh_of(self._strategy)  # replicas with parts of one model have the same samples
        if self._worker_samples is None:
            return (*replica_bounds(self.global_samples, mesh.shape[0], mesh.place(replica)[0]), 0)
        each = len(self._strategy.extended.worker_devices)
        me, _ = place_among_workers(self._strategy)
        parts = [mesh.place(number)[0] for number in mesh.replicas if number // each == me]
        if any(mesh.place(number)[0] in parts for number in mesh.replicas if number // each != me):
            raise WrongUse(
                f"Each worker reads its own samples, but the mesh {mesh} has parts of one model on several workers, "
                "which need the same samples: let each worker read the whole batch, or put the model's axis inside one."
            )
        parts = sorted({*parts})
        bounds = replica_bounds(self._worker_samples[me], len(parts), parts.index(mesh.place(replica)[0]))
        return (*bounds, tf.reduce_sum(self._worker_samples[:me]))
