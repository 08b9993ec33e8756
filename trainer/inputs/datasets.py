"""`tf.data.Dataset` and its distributed kinds: batches that are drawn inside the compiled function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...compat.dataset_graph import held_data, pipeline_checksum
from ...compat.datasets import (
    LIVE_SHUFFLE,
    batch_size,
    count_shuffles,
    end_iterator,
    saving_exactly,
)
from .calendar import Calendar
from .content import checksum, text_of_function
from .iterator_position import load_iterator, save_iterator
from .pipeline_state import PipelineState
from .readers import joining_reader, next_reader, optional_reader
from .rows import batch_spec
from .source import Chunk, Source

_log = logging.getLogger("unisono")


class DatasetSource(Source):
    """Batches of a dataset, through one iterator for each pass. Owns the iterator.

    The iterator's own checkpoint is its position, where every part of the pipeline can be saved; otherwise a
    resumed run draws and drops what was used.

    Args:
        dataset: its elements are the batches, or parts of them.
        steps_per_epoch: int or None; the steps of an epoch.
        parts: int; elements that make one batch (one for each replica of this worker).
        per_worker: whether the elements are this worker's rows only.
        by_function: whether the dataset is what a function of `tf.distribute.InputContext` returned for these replicas.
        resumable: whether its position will be asked for.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        steps_per_epoch: int | None,
        parts: int = 1,
        per_worker: bool = False,
        by_function: bool = False,
        resumable: bool = True,
    ) -> None:
        self._differs_by_replica = by_function
        self._dataset = saving_exactly(dataset) if resumable else dataset
        self._element_spec = dataset.element_spec
        self._parts, self.per_worker = parts, per_worker
        elements = length_of(dataset, steps_per_epoch)
        if per_worker:  # the worker with the most data ends the epoch
            elements = None
        self._counted = parts == 1 and elements is not None
        self.calendar = Calendar(steps_per_epoch, None if elements is None else -(-elements // parts))
        self.spec = batch_spec(self._element_spec)
        self._layout = f"{'this worker: ' if per_worker else ''}{self._element_spec}"
        if parts == 1:
            counts = _known_rows(self._element_spec)
            self.batch_rows = next(iter(counts)) if len(counts) == 1 else None
            if len(counts - {None}) < 2 and not per_worker and _is_dense(self.spec):
                self.usual_rows = next(iter(counts - {None}), None) or batch_size(dataset)
        if resumable:
            self._know(dataset)

    def _know(self, dataset: Any) -> None:
        """Looks at what the pipeline depends on beside its iterator."""
        self._outside = PipelineState(dataset)
        self._saves: bool | None = False if self._outside.never_saved else None
        self.inexact, self.owned = self._outside.inexact, self._outside.owned

    _differs_by_replica = False
    _length_is_hidden = False  # of a pass: its end is seen only when a batch more is asked for
    _iterator: Any = None
    _asked = 0

    @property
    def resume_by(self) -> str:
        """`"iterator"` where the pipeline can be saved, otherwise `"skip"`."""
        if self._saves is None:
            if self._iterator is None:  # an iterator more would change the order of a shuffled dataset
                self._open()
            self._saves = True
            self._packed()
        return "iterator" if self._saves else "skip"

    def _packed(self) -> bytes | None:
        """The iterator's checkpoint; None, from then on, where it cannot be saved: a moment says nothing about the next."""
        try:
            return save_iterator(self._iterator)
        except (tf.errors.OpError, ValueError) as error:
            self._saves = False
            _log.info("The input will be resumed by skipping: %s", str(error).splitlines()[0])
            return None

    def identity(self) -> dict[str, Any]:
        """With the checksum of the pipeline, where it is the same for every number of replicas."""
        known = super().identity()
        if not self._differs_by_replica:
            known["pipeline graph"] = pipeline_checksum(self._dataset, text_of_function)
        return known

    def _content(self) -> str | None:
        return None if self._differs_by_replica else checksum(held_data(self._dataset))

    def _open(self) -> None:
        self.close()
        self._iterator = iter(self._dataset)

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch: a new pass, or the next part of a pass that `steps_per_epoch` has cut."""
        if self.calendar.begin(epoch) or self._iterator is None:
            self._open()

    def _read(self, steps: int) -> Chunk:
        """The next chunk. Its batches are drawn when the compiled function runs."""
        if self._iterator is None:
            self._open()
        self._asked = steps
        return Chunk(
            self._iterator,
            steps,
            self.batch_rows,
            self._reader(),
            open_ended=not self._counted,
            signature=self._signature(),
            per_worker=self.per_worker,
            usual_rows=self.usual_rows,
            spec=self._element_spec,
        )

    def _reader(self) -> Callable[[Any, Any], Any]:
        if self._counted:
            return next_reader(self._layout)
        return (
            optional_reader(self._layout) if self._parts == 1 else joining_reader(self._parts, self._layout)
        )

    def _signature(self) -> Any:
        return tf.type_spec_from_value(self._iterator)

    def drawn(self, steps: int) -> None:
        """The data ended after `steps` steps of the last chunk.

        Raises:
            ValueError: if there was no batch at all.
        """
        if steps >= self._asked:
            return
        calendar = self.calendar
        calendar.advance(steps - self._asked)
        self._asked, calendar.ended = steps, True
        self.begun_again = self._length_is_hidden and calendar.begin_again()
        if self.begun_again:
            self._open()
            return
        if calendar.taken == calendar.passes == 0:
            raise ValueError("x is a dataset that gave no batch; give one with at least one row.")
        calendar.learn()

    def state(self) -> dict[str, Any]:
        """The position after the last chunk, with the iterator's checkpoint where there can be one."""
        state = {**super().state(), **self._outside.state()}
        if self._iterator is not None and not self.calendar.is_over() and self.resume_by == "iterator":
            packed = self._packed()
            # A shuffle at the end of its input is not in the checkpoint, and with it the order of the next pass.
            if packed is not None and packed.count(LIVE_SHUFFLE) >= count_shuffles(self._dataset):
                state["iterator"] = packed
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position of `state()`.

        Raises:
            ValueError: if the pipeline is another one, or has fewer batches than were used.
        """
        super().restore(state)
        taken = self.calendar.taken
        if "iterator" in state:
            self._open()
            load_iterator(self._iterator, state["iterator"])
            _log.info("Resumed the input from its iterator's checkpoint, at batch %d of its pass.", taken)
            return
        self._outside.restore(state)
        over = self.calendar.is_over()
        # Each pass that is started gives a shuffle another order.
        for number in range(self.calendar.passes + over):
            self._open()
            next(self._iterator, None)  # some parts of a pipeline start with the first element
            if self._outside.draws_all or (self._outside.draws_first and number == 0):
                for _ in self._iterator:
                    pass
        if not over:
            self._open()
            self._skip(taken)
            if taken:
                _log.warning("Resumed the input by drawing and dropping %d batches.", taken)

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
        if self._iterator is not None:
            end_iterator(self._iterator, self._dataset)
        self._iterator = None


def without_optionals(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset with None in place of every `tf.experimental.Optional`, as in Keras."""
    if not any(isinstance(leaf, tf.OptionalSpec) for leaf in tf.nest.flatten(dataset.element_spec)):
        return dataset

    def convert(*parts: Any) -> Any:
        element = parts if type(dataset.element_spec) is tuple else parts[0]
        return tf.nest.map_structure(
            lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, element
        )

    return dataset.map(convert)


def length_of(dataset: Any, steps_per_epoch: int | None) -> int | None:
    """The elements of a dataset, or None if their number is not known.

    Raises:
        ValueError: there is none, or no end and no `steps_per_epoch`.
    """
    cardinality: Any = dataset.cardinality  # that of a distributed dataset is no method but a number
    number: Any = cardinality() if callable(cardinality) else cardinality
    count = int(number)
    if count == tf.data.INFINITE_CARDINALITY and steps_per_epoch is None:
        raise ValueError("steps_per_epoch (None) must be given for a dataset that never ends.")
    if count == 0:
        raise ValueError("x is a dataset without any batch; give one with at least one row.")
    return count if count > 0 else None


def _known_rows(spec: Any) -> set[int | None]:
    """The numbers of rows that the arrays of an element have; None for those that are not known."""
    shapes = (getattr(leaf, "shape", None) for leaf in tf.nest.flatten(spec))
    return {shape[0] for shape in shapes if shape is not None and shape.rank}


def _is_dense(spec: Any) -> bool:
    """Whether all is numbers in tensors whose shapes are known but for the rows."""
    return all(
        isinstance(leaf, tf.TensorSpec)
        and bool(leaf.shape.rank)
        and leaf.shape[1:].is_fully_defined()
        and leaf.dtype not in (tf.string, tf.variant, tf.resource)
        for leaf in tf.nest.flatten(spec)
    )
