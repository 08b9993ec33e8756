"""Batches from arrays: in the memory of a device, or read as they are needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ...distribute.data_placement import DataHome
from .calendar import RowOrder
from .content import checksum
from .convert import as_resident, cast_floats
from .feed import GROUP_BYTES, FedSource, Group, batch_bytes
from .readers import (
    HOST,
    Reader,
    first_copy,
    gather_reader,
    open_part_reader,
    open_reader,
    part_reader,
    slice_reader,
)
from .rows import batch_spec, gather_rows, slice_rows
from .source import Chunk, Source


class ArraySource(Source):
    """Batches from arrays that stay in the memory of the host, or of each replica's GPU.

    Owns the tensors, but for those that another source holds. A chunk is the tensors and the numbers of its rows, so its
    size does not depend on the steps.

    Args:
        arrays: nest of NumPy arrays and tensors, in the structure of a batch.
        order: the order of their rows.
        home: where the tensors stay; None: on the host.
        beside: another source of this fit: what both are given is held once.
    """

    resume_by = "index"

    def __init__(
        self, arrays: Any, order: RowOrder, home: DataHome | None = None, beside: Source | None = None
    ) -> None:
        home = home or DataHome()
        self.devices, self.home = home.devices or (HOST,), home.sentence
        held = beside.held if isinstance(beside, ArraySource) and beside.devices == self.devices else {}
        self.held: dict[int, tuple[Any, list[Any]]] = {}
        for leaf in tf.nest.flatten(arrays):
            self.held[id(leaf)] = held.get(id(leaf)) or (
                leaf,
                [self._resident(leaf, d) for d in self.devices],
            )
        self._copies = [
            tf.nest.map_structure(lambda leaf, n=n: self.held[id(leaf)][1][n], arrays)
            for n in range(len(self.devices))
        ]
        self._arrays = self._copies[0]
        self.calendar: RowOrder = order
        self.rows = self.held_rows = order.rows
        self.batch_rows = order.batch_rows
        self._order_on_device: tuple[np.ndarray, list[tf.Tensor]] | None = None
        self._signature = batch_spec(self._arrays)
        self._layout = str(self._signature)
        self.spec = self._spec_of_batches()

    def whole(self) -> Any:
        """All rows as one batch; None where they must be read: classes weigh, or a batch has other kinds of tensors."""
        plain = self._class_weights is None and self.spec is self._signature
        return self._arrays if plain else None

    def _spec_of_batches(self) -> Any:
        """That of the arrays; of what is kept as another kind of tensors than batches have, that of a row that is read."""
        if all(isinstance(leaf, tf.TensorSpec | None) for leaf in tf.nest.flatten(self._signature)):
            return self._signature
        return batch_spec(slice_reader(1)((self._arrays, tf.constant(0, tf.int64)), tf.constant(0)))

    def _read(self, steps: int) -> Chunk | None:
        """The next chunk. One of open rows holds batches of both sizes, else the last one is alone where it is smaller."""
        run = self.calendar.next_run(steps)
        if run is None:
            return None
        order = self.calendar.indices(run.a_pass)
        open_rows = self._leaves_open(run.rows)
        rows = None if open_rows else run.rows
        with tf.device(HOST):
            place: Any = tf.constant(run.first_row, tf.int64)
            if open_rows:
                place = (place, tf.constant(self.batch_rows, tf.int64), tf.constant(self.rows, tf.int64))
        spec: Any = tf.nest.map_structure(tf.TensorSpec.from_tensor, place)
        if order is not None:
            orders = self._on_devices(order)
            place, spec = (orders, place), ([tf.TensorSpec([None], tf.int64)] * len(orders), spec)
        batches = self.calendar.left(steps) if open_rows else run.batches
        if len(self.devices) > 1:
            return self._chunk_of_copies(batches, rows, place, spec, order is not None)
        if order is not None:
            place, spec = (place[0][0], place[1]), (spec[0][0], spec[1])
        reader = self._reader(rows, order is not None)
        return Chunk((self._arrays, place), batches, rows, reader, signature=(self._signature, spec))

    def _leaves_open(self, rows: int) -> bool:
        """Whether batches from here on, the next of `rows` rows, are read with rows left open."""
        full = self.calendar.batch_rows
        if self.calendar.rows < full or self.calendar.rows % full == 0:
            return False
        return self.open_rows == "all" or (self.open_rows == "last" and rows < full)

    def _reader(self, rows: int | None, ordered: bool) -> Reader:
        if rows is None:
            return open_reader(self._layout, self.devices[0], ordered)
        return (gather_reader if ordered else slice_reader)(rows, self._layout, self.devices[0])

    def _chunk_of_copies(self, batches: int, rows: int | None, place: Any, spec: Any, ordered: bool) -> Chunk:
        """A chunk of which every replica reads its rows on its own device."""
        if rows is None:
            parts = open_part_reader(self._layout, self.devices, ordered)
        else:
            parts = part_reader(rows, self._layout, self.devices, ordered)
        return Chunk(
            (self._copies, place),
            batches,
            rows,
            first_copy(self._reader(rows, ordered), ordered),
            signature=([self._signature] * len(self.devices), spec),
            part_reader=parts,
        )

    def _content(self) -> str | None:
        return checksum(self._arrays)

    def _resident(self, leaf: Any, device: str) -> Any:
        with tf.device(device):
            return as_resident(leaf)

    def _on_devices(self, order: np.ndarray) -> list[tf.Tensor]:
        """The order of a pass as a tensor on each device, made once for all of its chunks."""
        if self._order_on_device is None or self._order_on_device[0] is not order:
            self._order_on_device = order, [self._resident(order, device) for device in self.devices]
        return self._order_on_device[1]


class StreamedArrays(FedSource):
    """Arrays that are too large to be copied, or lie in files: only the rows of the next batches are read.

    Holds a few groups of at most 16 MiB (or of one batch) at a time. The arguments are those of `ArraySource`.
    """

    resume_by = "index"

    def __init__(self, arrays: Any, order: RowOrder) -> None:
        self._arrays = arrays
        self.calendar: RowOrder = order
        self.rows, self.batch_rows = order.rows, order.batch_rows
        row = self._rows_from(0, 1, None)
        self.spec = self._layout = batch_spec(row)
        self._most_rows = max(1, GROUP_BYTES // max(1, batch_bytes(row)))

    def _content(self) -> str | None:
        return checksum(self._arrays)

    def _rows_from(self, start: int, count: int, order: np.ndarray | None) -> Any:
        chosen: Any = slice(start, start + count) if order is None else order[start : start + count]

        def read(leaf: Any) -> Any:
            if leaf is None:
                return None
            if isinstance(leaf, np.ndarray):
                return tf.constant(cast_floats(leaf[chosen]))
            if order is None:
                return cast_floats(slice_rows(leaf, start, start + count))
            return cast_floats(gather_rows(leaf, tf.constant(chosen)))

        with tf.device("CPU:0"):
            return tf.nest.map_structure(read, self._arrays)

    def _groups(self) -> Callable[[Callable[[], bool]], Iterator[Group]]:
        return functools.partial(self._groups_from, self.calendar.copy())

    def _groups_from(self, order: RowOrder, waiting: Callable[[], bool]) -> Iterator[Group]:
        while (run := order.next_run(1024, self._most_rows)) is not None:
            order.advance(run.batches)
            splits = np.arange(run.batches + 1, dtype=np.int64) * run.rows
            arrays = self._rows_from(run.first_row, run.batches * run.rows, order.indices(run.a_pass))
            yield Group(arrays, splits, run.rows)
