"""Readers read one batch from a chunk, in the compiled function, which is cached by them: equivalent ones are equal."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from ....distribute.step_context import here
from ..batch import batch_spec, concat_samples, map_leaves, on_device, slice_samples, take_samples
from ..digests import digest_of
from ..value_checks import LabelRule, assert_values

HOST = "CPU:0"


def for_xla() -> contextlib.AbstractContextManager[None]:
    """Let readers read samples by number inside, as XLA would compile the loop again for every new start of a slice."""
    return here.set_to(reads_under_xla=True)


@dataclasses.dataclass(frozen=True)
class ArrayReader:
    """Reads batch `i` of `(copies, place)`: arrays, with a copy on each device, and the positions of the batches in them.

    `place` is the first sample of batch 0, an int64 scalar; where batches have several sizes, it is the first sample of each
    batch and the end of the last, int64 `[batches + 1]`. With `ordered` it is `(orders, place)`: on each device the numbers
    of the samples in the order of the whole pass, int64 `(samples,)`, so that their shape does not depend on the steps.

    Attributes:
        layout: the arrays' spec, as text.
        batch_size: int; None: batches have several sizes, which the compiled function does not know.
    """

    layout: str
    batch_size: int | None
    devices: tuple[str, ...] = (HOST,)
    ordered: bool = False

    def __call__(self, inputs: Any, i: Any) -> Any:
        """Return the whole batch, from the first copy."""
        return self.read(inputs, i, 0)

    def read(self, inputs: Any, i: Any, replica: int, first: Any = 0, last: Any = None) -> Any:
        """Read samples `first` to `last - 1` of batch `i` (None: all to its end), on the device of a replica here."""
        copies, place = inputs
        orders, place = place if self.ordered else (None, place)
        known = self.batch_size
        if last is not None:
            known = last - first if isinstance(last, int) else None
        host = None if here.reads_under_xla else HOST  # XLA has one device
        with on_device(host):  # the host would wait for a GPU
            start = place[i] if self.batch_size is None else place + tf.cast(i, tf.int64) * self.batch_size
            begin = start + tf.cast(first, tf.int64)
            if last is not None:
                end = start + tf.cast(last, tf.int64)
            else:
                end = place[i + 1] if self.batch_size is None else begin + self.batch_size
            size = tf.reshape(end - begin, [1]) if known is None else tf.constant([known], tf.int64)
        if here.reads_under_xla and known is not None:
            numbers = begin + tf.range(known, dtype=tf.int64)
            numbers = numbers if orders is None else tf.gather(orders[replica], numbers)
            return take_samples(copies[replica], numbers)
        if orders is None:
            return slice_samples(copies[replica], begin, end, known, self.devices[replica])
        with on_device(host):
            where = tf.reshape(begin, [1])
        with tf.device(self.devices[replica]):
            return take_samples(copies[replica], tf.slice(orders[replica], where, size))


@dataclasses.dataclass(frozen=True)
class WholeReader:
    """The arrays of `(arrays, anything)` unchanged: one batch. `layout` is their spec, as text."""

    layout: str

    def __call__(self, inputs: Any, i: Any) -> Any:
        """Return the arrays."""
        return inputs[0]


@dataclasses.dataclass(frozen=True)
class IteratorReader:
    """Draws the next batch from a `tf.data.Iterator`, if there is one.

    Attributes:
        layout: the spec of an element, as text.
        counted: whether it certainly has one; then the result is the batch itself instead of an Optional.
        parts: int; elements that make one batch: their samples are concatenated. The last batch may have fewer.
        rules: for labels, by which the values of each batch are checked; None: they are not checked.
    """

    layout: str
    counted: bool = False
    parts: int = 1
    rules: tuple[LabelRule, ...] | None = None

    def __call__(self, iterator: Any, i: Any) -> Any:
        """Return the next batch."""
        if self.counted:
            return self._check(iterator.get_next())
        first, *others = [iterator.get_next_as_optional() for _ in range(self.parts)]
        if not others and self.rules is None:
            return first

        def whole(value: Any) -> Any:
            for other in others:
                value = tf.cond(
                    other.has_value(),
                    lambda value=value, other=other: concat_samples([value, other.get_value()]),
                    lambda value=value: value,
                )
            return self._check(value)

        spec = iterator.element_spec
        return map_optional(whole, first, batch_spec(spec) if others else spec)

    def _check(self, batch: Any) -> Any:
        """Return the batch, after the check of its values."""
        if self.rules is None:
            return batch
        with tf.control_dependencies(assert_values(batch, self.rules)):
            return map_leaves(tf.identity, batch)


class ComparedIterator(NamedTuple):
    """An iterator for `IteratorReader` whose batches go into a digest, which the workers compare.

    `early` yields an Optional for each batch: the first, compared before the first step; then no value. `digest` and
    `drawn` (int64 `(2,)`: the batches of this pass so far, and whether it has ended) are the handles of variables,
    because the signature of a function takes no variable.
    """

    iterator: Any
    early: Any
    digest: Any
    drawn: Any

    @property
    def element_spec(self) -> Any:
        """The spec of a batch."""
        return self.iterator.element_spec

    def get_next(self) -> Any:
        """Return the next batch."""
        early = self.early.get_next()
        return self._note(tf.cond(early.has_value(), early.get_value, self.iterator.get_next))

    def get_next_as_optional(self) -> Any:
        """Return the next batch, if there is one."""
        early = self.early.get_next()
        drawn = tf.cond(early.has_value(), lambda: early, self.iterator.get_next_as_optional)
        exists = tf.cast(drawn.has_value(), tf.int64)
        tf.raw_ops.AssignAddVariableOp(resource=self.drawn, value=tf.stack([exists, 1 - exists]))
        return map_optional(self._note, drawn, self.element_spec)

    def _note(self, batch: Any) -> Any:
        before = tf.raw_ops.ReadVariableOp(resource=self.digest, dtype=tf.int64)
        tf.raw_ops.AssignVariableOp(resource=self.digest, value=31 * before + digest_of(batch))
        return batch


ITERATORS = (tf.data.Iterator, ComparedIterator)


def map_optional(fn: Callable[[Any], Any], optional: Any, spec: Any) -> Any:
    """Apply `fn` to the value of a `tf.experimental.Optional`, if any; `spec` is the nest of specs of the result."""
    return tf.cond(
        optional.has_value(),
        lambda: tf.experimental.Optional.from_value(fn(optional.get_value())),
        lambda: tf.experimental.Optional.empty(spec),
    )
