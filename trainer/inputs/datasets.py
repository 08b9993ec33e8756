"""`tf.data.Dataset` and its distributed kinds: batches that are drawn inside the compiled function."""

from __future__ import annotations

import copy
import io
import logging
import os
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...compat.datasets import LIVE_SHUFFLE, batch_size, count_shuffles, end_iterator
from .arrays import RAN_OUT
from .placeholder_batches import made_up_dataset
from .readers import (
    distributed_reader,
    join_replicas,
    joining_reader,
    next_reader,
    optional_reader,
    weights_of_classes,
)
from .rows import batch_spec
from .source import Chunk

_log = logging.getLogger("unisono")


class DatasetSource:
    """Batches of a dataset, through one iterator for each pass. Owns the iterator.

    The iterator's own checkpoint is its position, where every part of the pipeline can be saved; otherwise a
    resumed run draws and drops what was used. `steps_per_epoch` lets one pass last over several epochs, as in
    Keras.
    """

    per_worker = False

    def __init__(
        self,
        dataset: tf.data.Dataset,
        steps_per_epoch: int | None,
        parts: int = 1,
        per_worker: bool = False,
    ) -> None:
        """Starts no iterator yet.

        Args:
            dataset: elements are tuples `(x,)`, `(x, y)` or `(x, y, sample_weight)`.
            steps_per_epoch: int or None; the steps of an epoch.
            parts: int; elements that make one batch (one for each replica of this worker).
            per_worker: whether the elements are this worker's rows only.
        """
        self._dataset = _refusing_external_state(dataset)
        self._parts = parts
        self.per_worker = per_worker
        length = None if per_worker else _cardinality(dataset)  # the worker with the most data ends the epoch
        self._setup(batch_spec(dataset.element_spec), length, steps_per_epoch, parts)
        if parts == 1 and not per_worker and _is_dense(self.spec):
            self.usual_rows = self.batch_rows or batch_size(dataset)
        self._saves: bool | None = None

    def _setup(self, spec: Any, elements: int | None, steps_per_epoch: int | None, parts: int) -> None:
        self.spec = spec
        self._wanted = steps_per_epoch
        self._batches = None if elements is None else -(-elements // parts)
        self._exact = parts == 1 and elements is not None
        self.steps_per_epoch = steps_per_epoch or self._batches
        rows = _static_rows(self._dataset.element_spec) if parts == 1 else None
        self.batch_rows: int | None = rows
        self.usual_rows: int | None = None
        self._iterator: Any = None
        self._epoch = self._step = self._passes = self._taken = self._asked = 0
        self._ended = False

    @property
    def resume_by(self) -> str:
        """`"iterator"` where the pipeline can be saved, otherwise `"skip"`."""
        if self._saves is None:
            if self._iterator is None:  # an iterator more would change the order of a shuffled dataset
                self._open()
            try:
                _save_iterator(self._iterator)
                self._saves = True
            except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, ValueError) as error:
                self._saves = False
                _log.info("The input will be resumed by skipping: %s", str(error).splitlines()[0])
        return "iterator" if self._saves else "skip"

    def _open(self) -> None:
        if self._iterator is not None:
            self._passes += 1
        self._end()
        self._iterator = iter(self._dataset)
        self._taken = 0
        self._ended = False

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch: a new pass, or the next part of a pass that `steps_per_epoch` has cut."""
        self._ended = self._pass_is_over()
        goes_on = self._wanted is not None and epoch == self._epoch + 1 and not self._ended
        if self._iterator is None or (not goes_on and (self._taken or self._ended)):
            self._open()
        self._epoch, self._step = epoch, 0

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk. Its batches are drawn when the compiled function runs."""
        if self._iterator is None:
            self._open()
        left = max_steps if self._wanted is None else min(max_steps, self._wanted - self._step)
        if self._batches is not None:
            left = min(left, self._batches - self._taken)
        if left <= 0 or self._ended:
            self._ended = self._pass_is_over()
            if self._wanted is not None and self._step < self._wanted:
                warnings.warn(RAN_OUT, stacklevel=2)
            return None
        self._step += left
        self._taken += left
        self._asked = left
        return self._chunk(left)

    def _chunk(self, steps: int) -> Chunk:
        layout = str(self._dataset.element_spec)
        if self.per_worker:  # the loop that joins the rows of all workers is another function
            layout = f"this worker's rows: {layout}"
        if self._exact:
            reader: Callable[[Any, Any], Any] = next_reader(layout)
        else:
            reader = optional_reader(layout) if self._parts == 1 else joining_reader(self._parts, layout)
        rows = self.batch_rows
        return Chunk(
            self._iterator,
            steps,
            rows,
            reader,
            not self._exact,
            self._signature(),
            self.per_worker,
            self.usual_rows,
        )

    def stand_in(self) -> DatasetSource | None:
        """A source with made-up batches that are read as those of this one; None where they have no usual size or layout.

        This one is not touched: an iterator more would change the order of a shuffled dataset.
        """
        if self.usual_rows is None:
            return None
        other = copy.copy(self)
        other._dataset = made_up_dataset(self._dataset.element_spec, self.usual_rows)
        if (
            other._dataset.element_spec != self._dataset.element_spec
        ):  # where some parts tell their rows and others do not
            return None
        other._iterator = other._wanted = None
        other._batches = sys.maxsize if self._exact else None
        other._taken, other._ended = 0, False
        return other

    def _signature(self) -> Any:
        return tf.type_spec_from_value(self._iterator)

    def drawn(self, steps: int) -> None:
        """The data ended after `steps` steps of the last chunk.

        Raises:
            ValueError: if there was no batch at all.
        """
        if steps >= self._asked:
            return
        self._step -= self._asked - steps
        self._taken -= self._asked - steps
        self._asked = steps
        self._ended = True
        if self._taken == 0 and self._passes == 0:
            raise ValueError("x is a dataset that gave no batch; give one with at least one row.")
        if self._wanted is None:
            self.steps_per_epoch = self._step

    def state(self) -> dict[str, Any]:
        """The position after the last chunk, with the iterator's checkpoint where there can be one."""
        state: dict[str, Any] = {
            "epoch": self._epoch,
            "step": self._step,
            "passes": self._passes,
            "taken": self._taken,
            "ended": int(self._ended),
        }
        if self._iterator is not None and not self._pass_is_over() and self.resume_by == "iterator":
            packed = _save_iterator(self._iterator)
            # A shuffle at the end of its input is not in the checkpoint, and with it the order of the next pass.
            if packed.count(LIVE_SHUFFLE) >= count_shuffles(self._dataset):
                state["iterator"] = packed
        return state

    def _pass_is_over(self) -> bool:
        return self._ended or (self._batches is not None and self._taken >= self._batches)

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position of `state()`.

        Raises:
            ValueError: if the pipeline is another one, or has fewer batches than were used.
        """
        taken, passes = int(state["taken"]), int(state["passes"])
        self._end()
        self._passes = 0
        if "iterator" in state:
            self._open()
            _load_iterator(self._iterator, state["iterator"])
            _log.info("Resumed the input from its iterator's checkpoint, at batch %d of its pass.", taken)
        else:
            for _ in range(passes):  # a shuffled dataset has another order in every pass that is started
                self._open()
                next(self._iterator, None)  # some parts of a pipeline start with the first element
            self._open()
            self._taken, self._ended = taken, bool(state["ended"])
            if self._pass_is_over():
                next(self._iterator, None)
            else:
                self._skip(taken)
                _log.warning("Resumed the input by drawing and dropping %d batches.", taken)
        self._epoch, self._step, self._ended = int(state["epoch"]), int(state["step"]), bool(state["ended"])
        self._taken, self._passes = taken, passes

    def _skip(self, batches: int) -> None:
        for number in range(batches * self._parts):
            try:
                next(self._iterator)
            except StopIteration:
                if number > (batches - 1) * self._parts:
                    return
                raise ValueError(
                    f"The dataset has only {number} elements, but the run to resume had used {batches} batches; resume "
                    "with the data of the first run."
                ) from None

    def close(self) -> None:
        """Gives back the iterator."""
        self._end()

    def _end(self) -> None:
        if self._iterator is not None:
            end_iterator(self._iterator, self._dataset)
        self._iterator = None


class DistributedSource(DatasetSource):
    """A `tf.distribute.DistributedDataset`: the rows of all replicas of this worker are one batch again."""

    def __init__(
        self,
        dataset: Any,
        steps_per_epoch: int | None,
        strategy: tf.distribute.Strategy,
        per_worker: bool,
        weights: tuple[tuple[int, ...], tuple[float, ...]] | None = None,
    ) -> None:
        """Starts an iterator to learn what its batches are.

        Args:
            dataset: made by `strategy.experimental_distribute_dataset` or
                `distribute_datasets_from_function`.
            steps_per_epoch: int or None; the steps of an epoch.
            strategy: the strategy that made it.
            per_worker: whether there is more than one worker.
            weights: classes and their weights, or None.
        """
        self._dataset = dataset
        self._parts = 1
        self.per_worker = per_worker
        self._saves = False
        iterator = iter(dataset)
        self._finish = _finish_for(strategy, weights, iterator)
        self._setup(self._finish.spec, None, steps_per_epoch, 1)
        self._iterator = iterator
        known = _cardinality(dataset)
        self.steps_per_epoch = steps_per_epoch or (None if per_worker else known)
        self.batch_rows = None

    def _chunk(self, steps: int) -> Chunk:
        reader = distributed_reader(self._finish)
        return Chunk(self._iterator, steps, None, reader, True, None, self.per_worker)


class _Finish:
    """From one element of a distributed iterator to the tuple of one batch; `spec` is the spec of that."""

    spec: Any = None

    def __init__(self, strategy: tf.distribute.Strategy, weights: Any) -> None:
        self._strategy = strategy
        self._weights = weights

    def __call__(self, element: Any) -> tuple[Any, ...]:
        batch = as_tuple(join_replicas(self._strategy, element))
        if self._weights is not None:
            batch = (batch[0], batch[1], weights_of_classes(batch[1], *self._weights))
        return batch


# One object for each layout: the compiled function is kept by it.
_finishes: dict[Any, _Finish] = {}


def _finish_for(strategy: tf.distribute.Strategy, weights: Any, iterator: Any) -> _Finish:
    finish = _Finish(strategy, weights)
    traced = tf.function(lambda it: finish(it.get_next())).get_concrete_function(iterator)
    finish.spec = batch_spec(traced.structured_outputs)
    return _finishes.setdefault((strategy, weights, str(finish.spec)), finish)


def as_tuple(element: Any) -> tuple[Any, ...]:
    """One element of a dataset as the tuple `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        ValueError: for tuples of another length.
    """
    if not isinstance(element, tuple) or hasattr(element, "_fields"):
        return (element,)
    if not 1 <= len(element) <= 3:
        raise ValueError(
            f"Elements of the dataset are tuples of {len(element)}; they must be (inputs,), (inputs, targets) or "
            "(inputs, targets, sample_weights). Put several inputs into one tuple or dict."
        )
    return element


def _cardinality(dataset: Any) -> int | None:
    """Elements, or None if that is not known."""
    count = _raw_cardinality(dataset)
    if count == 0:
        raise ValueError("x is a dataset without any batch; give one with at least one row.")
    return count if count > 0 else None


def is_infinite(dataset: Any) -> bool:
    """Whether the dataset says that it never ends."""
    return _raw_cardinality(dataset) == tf.data.INFINITE_CARDINALITY


def _raw_cardinality(dataset: Any) -> int:
    """What the dataset says; that of a distributed one is no method but a number."""
    cardinality: Any = dataset.cardinality
    number: Any = cardinality() if callable(cardinality) else cardinality
    return int(number)


def _static_rows(spec: Any) -> int | None:
    for leaf in tf.nest.flatten(spec):
        shape = getattr(leaf, "shape", None)
        if shape is not None and shape.rank:
            return shape[0]
    return None


def _is_dense(spec: Any) -> bool:
    """Whether all is numbers in tensors whose shapes are known but for the rows."""
    leaves = tf.nest.flatten(spec)
    return all(isinstance(leaf, tf.TensorSpec) and _is_full(leaf) for leaf in leaves)


def _is_full(spec: tf.TensorSpec) -> bool:
    known = bool(spec.shape.rank) and spec.shape[1:].is_fully_defined()
    return known and spec.dtype not in (tf.string, tf.variant, tf.resource)


def _refusing_external_state(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset with its options, and an iterator that says so if it cannot be saved exactly."""
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
    return dataset.with_options(options)


_FILES = ("iterator.index", "iterator.data-00000-of-00001")


def _save_iterator(iterator: Any) -> bytes:
    """The iterator's checkpoint as the bytes of a ZIP file."""
    with tempfile.TemporaryDirectory() as folder:
        tf.train.Checkpoint(iterator=iterator).write(os.path.join(folder, "iterator"))
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for name in _FILES:
                archive.write(os.path.join(folder, name), name)
    return packed.getvalue()


def _load_iterator(iterator: Any, packed: Any) -> None:
    data = packed if isinstance(packed, bytes) else bytes(bytearray(packed))
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in _FILES:
                    with open(os.path.join(folder, name), "wb") as file:
                        file.write(archive.read(name))
            tf.train.Checkpoint(iterator=iterator).read(os.path.join(folder, "iterator"))
        except (tf.errors.OpError, zipfile.BadZipFile, KeyError) as error:
            raise ValueError(
                "The saved position of the input does not fit x: resume with the pipeline of the first run "
                f"({str(error).splitlines()[0]})."
            ) from error
