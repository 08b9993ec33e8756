"""`tf.data.Dataset`: batches that are drawn inside the compiled function."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ....compat.keras_private.variables import plain_variable
from ....compat.tensorflow_private.dataset_graph import find_held_data, pipeline_checksum
from ....compat.tensorflow_private.tf_data import (
    LIVE_SHUFFLE,
    batch_size,
    count_shuffles,
    end_iterator,
    save_exactly,
)
from ....compat.upstream import need
from ....state.identity.described_functions import text_of_value
from ....state.identity.described_values import checksum
from ..batch import batch_spec, is_dense
from ..digests import digest_of
from ..outside_state import PipelineState, draws_numbers
from ..position import Position
from ..value_checks import LabelRule
from .iterator_checkpoint import load_iterator, save_iterator
from .readers import ComparedIterator, IteratorReader
from .source import Chunk, Source

_log = logging.getLogger("unisono")


@dataclasses.dataclass(frozen=True)
class Elements:
    """A dataset whose elements are batches, or parts of them.

    Attributes:
        dataset: what yields them.
        parts: elements that make one batch (one for each replica of this worker).
        per_worker: whether they are this worker's samples only.
        by_replica: whether they depend on the number of replicas.
        batches: of a pass, like the cardinality of a dataset; None: the cardinality of `dataset`.
        compared: whether the workers compare what they read.
    """

    dataset: tf.data.Dataset
    parts: int = 1
    per_worker: bool = False
    by_replica: bool = False
    batches: int | None = None
    compared: bool = False

    def count(self) -> int:
        """Return the batches of a pass, like the cardinality of a dataset."""
        if self.batches is not None:
            return self.batches
        elements = int(self.dataset.cardinality())
        return -(-elements // self.parts) if elements > 0 else elements


class DatasetSource(Source):
    """Batches of a dataset, through one iterator for each pass. Owns the iterator.

    The iterator's own checkpoint is its position, where every part of the pipeline can be saved; otherwise a
    resumed run draws and drops the used batches. `resumable`: whether its position will be requested.
    """

    _iterator: Any = None
    _outside: Any = None
    _early: Any = None
    _asked = 0

    def __init__(self, elements: Elements, steps_per_epoch: int | None, resumable: bool = True) -> None:
        need("Training from a `tf.data.Dataset`")
        dataset, parts, per_worker = elements.dataset, elements.parts, elements.per_worker
        self._by_replica = elements.by_replica
        if elements.compared:
            self.digest = plain_variable(tf.zeros([1, 2], tf.int64), [None, 2])
            with tf.device("CPU:0"):  # read while a GPU waits
                self._drawn = plain_variable(tf.zeros([2], tf.int64))
        self._given, self._dataset = dataset, save_exactly(dataset) if resumable else dataset
        self._element_spec = dataset.element_spec
        self._parts, self.per_worker = parts, per_worker
        batches = elements.count()
        if batches == tf.data.INFINITE_CARDINALITY and steps_per_epoch is None:
            raise ValueError("steps_per_epoch (None) must be set for a dataset that never ends.")
        if batches == 0:
            raise ValueError("x is an empty dataset: pass one with at least one sample.")
        known = batches if batches > 0 else None
        expected = known if steps_per_epoch else None
        if per_worker:  # the worker with the most data ends the epoch
            known = None
        counted = parts == 1 and known is not None
        layout = f"{'this worker: ' if per_worker else ''}{self._element_spec}"
        self._reader = IteratorReader(layout, counted, parts)
        self.position = Position(steps_per_epoch, known, expected)
        self.spec = batch_spec(self._element_spec)
        if parts == 1:
            shapes = (getattr(leaf, "shape", None) for leaf in tf.nest.flatten(self._element_spec))
            counts = {shape[0] for shape in shapes if shape is not None and shape.rank}
            self.batch_size = next(iter(counts)) if len(counts) == 1 else None
            if len(counts - {None}) < 2 and not per_worker and is_dense(self.spec):
                self.usual_batch_size = next(iter(counts - {None}), None) or batch_size(dataset)
        if resumable:
            self._outside = PipelineState(dataset)
            self._saves: bool | None = False if self._outside.never_saved else None

    @property
    def inexact(self) -> str | None:
        """Why a resumed run may get other batches, as far as it is known."""
        return self._outside.inexact if self._outside else None

    @property
    def own_state(self) -> Sequence[Any]:
        """Generators and variables that only this input advances."""
        return self._outside.own_state if self._outside else ()

    def watch(self, named: Mapping[str, Any]) -> None:
        """Note from which generators Python functions draw."""
        self._outside.watch(named)

    @property
    def resume_by(self) -> str:
        """`"iterator"` if the pipeline can be saved, otherwise `"skip"`."""
        if self._saves is None:
            if self._iterator is None:  # a second iterator would change the order of a shuffled dataset
                self._open()
            self._saves = True
            self._pack()
        return "iterator" if self._saves else "skip"

    def _pack(self) -> bytes | None:
        """Return the iterator's checkpoint; None, from then on, where it cannot be saved at some moment."""
        try:
            return save_iterator(self._iterator)
        except (tf.errors.OpError, ValueError) as error:
            self._saves = False
            _log.info("The input will be resumed by skipping: %s", str(error).splitlines()[0])
            return None

    def identity(self) -> dict[str, Any]:
        """Include the checksum of the pipeline, where it is the same for every number of replicas."""
        known = super().identity()
        if not self._by_replica:
            # Without our options, which reject Python.
            known["pipeline"] = pipeline_checksum(self._given, text_of_value)
        return known

    def _content(self) -> str | None:
        return None if self._by_replica else checksum(find_held_data(self._dataset))

    def _open(self) -> None:
        self.close()
        self._iterator = iter(self._dataset)
        self._reset_drawn(0)

    def _reset_drawn(self, batches: int) -> None:
        if self.digest is not None:
            self._drawn.assign([batches, 0])

    def check_values(self, rules: tuple[LabelRule, ...]) -> None:
        """Let the reader check each batch."""
        self._reader = dataclasses.replace(self._reader, rules=rules)

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch: a new pass, or the next part of a pass that is split by `steps_per_epoch`."""
        if self.position.begin(epoch) or self._iterator is None:
            self._open()

    def _read(self, steps: int) -> Chunk:
        """Return the next chunk. Its batches are drawn when the compiled function runs."""
        if self._iterator is None:
            self._open()
        self._asked, inputs = steps, self._inputs()
        return Chunk(
            inputs,
            steps,
            self.batch_size,
            self._reader,
            open_ended=not self._reader.counted,
            signature=tf.nest.map_structure(tf.type_spec_from_value, inputs),
            per_worker=self.per_worker,
            usual_batch_size=self.usual_batch_size,
        )

    def _inputs(self) -> Any:
        """Return the iterator for the steps. Where workers compare what they read, the first batch of all is drawn here."""
        if self.digest is None:
            return self._iterator
        if self._early is None:
            first, none = (
                self._iterator.get_next_as_optional(),
                tf.experimental.Optional.empty(self._element_spec),
            )
            if first.has_value():
                self.digest.assign(digest_of(first.get_value()))
            others = tf.data.Dataset.from_tensors(none).repeat()
            self._early = iter(tf.data.Dataset.from_tensors(first).concatenate(others))
        return ComparedIterator(self._iterator, self._early, self.digest.handle, self._drawn.handle)

    def draws(self) -> bool:
        """Return whether its functions draw random numbers."""
        return draws_numbers(self._dataset)

    def note_drawn(self, steps: int) -> None:
        """Note that the data ended after `steps` steps of the last chunk; if it ended with the last epoch, begin anew."""
        if steps >= self._asked:
            return
        position = self.position
        position.advance(steps - self._asked)
        self._asked, position.ended = steps, True
        if position.taken == position.passes == 0:
            raise ValueError("x is a dataset that yielded no batch: pass one with at least one sample.")
        if not self._begins_anew():
            position.end_epoch()

    def state(self) -> dict[str, Any]:
        """Return the position after the last chunk, with the iterator's checkpoint where possible."""
        state = {**super().state(), **self._outside.state()}
        if self._iterator is not None and not self.position.is_over() and self.resume_by == "iterator":
            packed = self._pack()
            # The checkpoint lacks a shuffle at the end of its input, and with it the order of the next pass.
            if packed is not None and packed.count(LIVE_SHUFFLE) >= count_shuffles(self._dataset):
                state["iterator"] = packed
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position of `state()`; reject that of another pipeline, or one beyond the end of the data."""
        super().restore(state)
        self._early, taken = None, self.position.taken
        if "iterator" in state:
            self._open()
            load_iterator(self._iterator, state["iterator"])
            self._reset_drawn(taken)
            _log.info("Resumed the input from its iterator's checkpoint, at batch %d of its pass.", taken)
            return
        self._outside.restore(state)
        over = self.position.is_over()
        # Each started pass changes the order of a shuffle.
        for number in range(self.position.passes + over):
            self._open()
            next(self._iterator, None)  # some parts of a pipeline start with the first element
            if self._outside.draws_all or (self._outside.draws_first and number == 0):
                for _ in self._iterator:
                    pass
        if not over:
            self._open()
            self._skip(taken)
            self._reset_drawn(taken)
            if taken:
                _log.warning("Resumed the input by skipping %d batches.", taken)

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
        """Release the iterator."""
        if self._iterator is not None:
            end_iterator(self._iterator, self._dataset)
        self._iterator = None


def without_optionals(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset with None instead of every `tf.experimental.Optional`, as in Keras."""
    if not any(isinstance(leaf, tf.OptionalSpec) for leaf in tf.nest.flatten(dataset.element_spec)):
        return dataset

    def convert(*parts: Any) -> Any:
        element = parts if type(dataset.element_spec) is tuple else parts[0]
        return tf.nest.map_structure(
            lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, element
        )

    return dataset.map(convert)
