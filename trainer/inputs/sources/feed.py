"""Batches that a background thread makes ahead of training, several in one tensor, so that one call can run many steps.

A chunk is a part of a group of batches, so its size does not depend on the speed of the thread, unless that is harmless.
"""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ..batch import concat_samples, is_scalar, open_spec, sample_count
from ..digests import digest_of
from .readers import ArrayReader, WholeReader
from .source import Chunk, Source

GROUP_BYTES = 16 * 2**20
_GROUP_SECONDS = 0.05
_STATIC_SIZES = 3


@dataclasses.dataclass(frozen=True)
class Group:
    """Batches in one tensor for each array: the samples of all batches, in order."""

    arrays: Any
    splits: np.ndarray
    """int64 `[batches + 1]`; the start of each batch, and the end."""
    batch_size: int | None
    """The size of each batch where the compiled function must know it."""
    whole: bool = False
    """Whether the arrays form one batch: they have different numbers of samples."""
    digest: Any = None
    """Of the arrays and the splits, where workers compare them."""

    @property
    def steps(self) -> int:
        """The batches."""
        return len(self.splits) - 1

    def part(self, first: int, steps: int, signature: Any) -> Chunk:
        """Return batches `first` to `first + steps - 1` as a chunk; nothing is copied."""
        place: Any = self.splits[first : first + steps + 1] if self.batch_size is None else self.splits[first]
        arrays, spec = [self.arrays], [signature]
        reader: Any = ArrayReader(str(signature), self.batch_size)
        if self.whole:
            arrays, spec, reader = self.arrays, signature, WholeReader(str(signature))
        spec = (spec, tf.TensorSpec([None] * np.ndim(place), tf.int64))
        inputs = (arrays, tf.constant(place, tf.int64))
        return Chunk(inputs, steps, self.batch_size, reader, signature=spec)


class BatchForm(NamedTuple):
    """The common layout of the batches of one group: including their size, unless sizes vary much."""

    structure: str
    leaves: tuple[Any, ...]
    """The dtype and the shape of a sample of each NumPy array, the specs of tensors."""
    size: int | None
    """The number of samples; None: it differs between arrays."""


def form_of(batch: Any) -> BatchForm:
    """Return the layout of a nest of NumPy arrays and tensors with samples. Fast for NumPy arrays."""
    leaves = tf.nest.flatten(batch)
    specs = (
        (leaf.dtype, leaf.shape[1:]) if isinstance(leaf, np.ndarray) else open_spec(leaf) for leaf in leaves
    )
    present = [leaf for leaf in leaves if leaf is not None and not is_scalar(leaf)]
    sizes = {len(leaf) if isinstance(leaf, np.ndarray) else int(sample_count(leaf)) for leaf in present}
    structure = repr(tf.nest.map_structure(lambda leaf: leaf is None, batch))
    return BatchForm(structure, tuple(specs), sizes.pop() if len(sizes) == 1 else None)


def _concat_arrays(*arrays: Any) -> Any:
    if isinstance(arrays[0], np.ndarray):
        return tf.constant(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
    return concat_samples(arrays)


def _bytes_of(batch: Any) -> int:
    """Return the bytes of all NumPy arrays and tensors of a batch."""
    leaves = [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]
    return sum(max(1, tf.as_dtype(leaf.dtype).size * int(np.prod(leaf.shape))) for leaf in leaves)


class Feed:
    """A thread that runs a few groups ahead of training. `groups` gets a function that tells if the consumer waits."""

    def __init__(self, groups: Callable[[Callable[[], bool]], Iterator[Group]]) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=2)
        self._stop = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._work, args=(groups,), daemon=True, name="unisono-feed")
        self._thread.start()

    def _work(self, groups: Callable[[Callable[[], bool]], Iterator[Group]]) -> None:
        end: Any = None
        try:
            for group in groups(self._queue.empty):
                if not self._put(group):
                    return
        except BaseException as error:
            end = error
        self._put(end)

    def _put(self, item: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def take(self) -> Group | None:
        """Return the next group, or None after the last; raise the error of the user's code after the groups before it."""
        if self._over:
            return None
        item = self._queue.get()
        if isinstance(item, Group):
            return item
        self._over = True
        self._thread.join(timeout=5)
        if item is not None:
            raise item
        return None

    def close(self) -> None:
        """Stop the thread; wait for at most five seconds while the user's code makes a batch."""
        self._stop.set()
        self._thread.join(timeout=5)


class FedSource(Source):
    """Batches that a background thread makes ahead of training. Owns the thread of the epoch.

    The compiled function knows the first few batch sizes; an input with more of them is read with unknown sizes, so that the
    function is not traced for each.

    Args:
        steady: whether groups must be the same on every worker, which compare them; otherwise a group is closed early when
            the consumer waits for it.
    """

    _feed: Feed | None = None
    _group: Group | None = None
    _first = 0  # first batch of the next group

    def __init__(self, spec: Any, steady: bool) -> None:
        self.spec = self._signature = spec
        self._steady = steady
        self._most = 16 if steady else 1024
        self._sizes: set[int] = set()
        self.digest = np.zeros([1, 2], np.int64) if steady else None

    def _batches(self) -> Iterator[tuple[Any, BatchForm]]:
        """Return the batches from the position on to the end of the epoch, with their layouts. Context: the thread."""
        raise NotImplementedError

    def _read(self, steps: int) -> Chunk | None:
        if self._feed is None:
            self._feed = Feed(self._groups)
        if self._group is None:
            self._group, self._first = self._feed.take(), 0
            self.read = self.position.taken + (self._group.steps if self._group else 0)
        if self._group is None:
            self.position.ended = True
            return None
        self.digest = self._group.digest
        steps = min(steps, self._group.steps - self._first)
        chunk = self._group.part(self._first, steps, self._signature)
        self._first += steps
        if self._first == self._group.steps:
            self._group = None
        return chunk

    def close(self) -> None:
        """Stop the thread."""
        feed, self._feed, self._group = self._feed, None, None
        if feed is not None:
            feed.close()

    def _groups(self, waiting: Callable[[], bool]) -> Iterator[Group]:
        """Yield the batches as groups; an error of the user's code comes after the valid batches before it."""
        batches = self._batches()
        held: list[tuple[Any, BatchForm]] = []
        held_bytes, began = 0, 0.0
        failure: BaseException | None = None
        while True:
            try:
                item = next(batches, None)
            except BaseException as error:
                item, failure = None, error
            if held and (item is None or not self._fits(held, held_bytes, item)):
                yield self._concatenate_held(held)
                held, held_bytes = [], 0
            if failure is not None:
                raise failure
            if item is None:
                return
            if not held:
                began = time.monotonic()
            held.append(item)
            held_bytes += _bytes_of(item[0])
            if not self._steady and waiting() and time.monotonic() - began > _GROUP_SECONDS:
                yield self._concatenate_held(held)
                held, held_bytes = [], 0

    def _fits(self, held: list[tuple[Any, BatchForm]], held_bytes: int, item: Any) -> bool:
        if len(held) >= self._most or held_bytes + _bytes_of(item[0]) > GROUP_BYTES:
            return False
        (_, first), (_, layout) = held[0], item
        if first.size is None or layout.size is None:
            return False  # a batch whose arrays have different sizes is a separate group
        if first == layout:
            return True
        return first[:-1] == layout[:-1] and self._varies(layout.size) and self._varies(first.size)

    def _varies(self, size: int) -> bool:
        return size not in self._sizes and len(self._sizes) >= _STATIC_SIZES

    def _concatenate_held(self, held: list[tuple[Any, BatchForm]]) -> Group:
        size = held[0][1].size
        with tf.device("CPU:0"):
            arrays = tf.nest.map_structure(_concat_arrays, *(batch for batch, _ in held))
        if size is not None and not self._varies(size):
            self._sizes.add(size)
        splits = np.cumsum([0, *(layout.size or 0 for _, layout in held)], dtype=np.int64)
        digest = 31 * digest_of(arrays) + digest_of(splits) * [1, 0] if self._steady else None
        if size is None:
            return Group(arrays, np.array([0, 1]), None, True, digest)
        return Group(arrays, splits, size if size in self._sizes else None, False, digest)
