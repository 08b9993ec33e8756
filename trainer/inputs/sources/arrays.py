"""Batches from arrays: in the memory of a device, or read on demand."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ....distribute.hardware.data_placement import DataHome
from ....state.identity.described_values import checksum
from ..batch import batch_spec, slice_samples, take_samples
from ..convert import as_resident, cast_floats
from ..position import SampleOrder
from .feed import BatchForm, FedSource, form_of
from .readers import HOST, ArrayReader
from .source import Chunk, Source


class ArraySource(Source):
    """Batches from arrays in host memory or on each replica's GPU. Owns the tensors that no `other` source holds."""

    resume_by = "index"

    def __init__(self, arrays: Any, order: SampleOrder, home: DataHome, other: Source | None) -> None:
        self.devices, self.home = home.devices or (HOST,), home.sentence
        held = other.held if isinstance(other, ArraySource) and other.devices == self.devices else {}
        leaves = {id(leaf): leaf for leaf in tf.nest.flatten(arrays)}
        copies = self._on_devices([leaf for key, leaf in leaves.items() if key not in held])
        new = zip([key for key in leaves if key not in held], zip(*copies))
        # The array, which keeps its identity, and its copies.
        self.held = {key: (leaves[key], each) for key, each in new} | {
            k: held[k] for k in leaves if k in held
        }
        self._copies = [
            tf.nest.map_structure(lambda leaf, n=n: self.held[id(leaf)][1][n], arrays)
            for n in range(len(self.devices))
        ]
        self.position: SampleOrder = order
        self.held_samples, self.batch_size = order.samples, order.batch_size
        self._order: tuple[np.ndarray, list[tf.Tensor]] | None = None
        self._signature = batch_spec(self._copies[0])
        self.spec = self._signature
        if not all(isinstance(leaf, tf.TensorSpec | None) for leaf in tf.nest.flatten(self.spec)):
            # Arrays are stored as a type that batches do not have.
            self.spec = batch_spec(
                ArrayReader("", 1)((self._copies, tf.constant(0, tf.int64)), tf.constant(0))
            )

    def whole(self) -> Any:
        """Return all samples as one batch; None where they must be read: with class weights, or for other tensor types."""
        plain = self.class_weights is None and self.spec is self._signature
        return self._copies[0] if plain else None

    def _read(self, steps: int) -> Chunk:
        """Return the next chunk: batches of one size, or, where the reader does not know the size, of both sizes."""
        size: int | None
        first, batches, size = self.position.next_batches(steps)
        place: Any = first
        full, samples = self.position.batch_size, self.position.samples
        opens = self.open_sizes == "all" or (self.open_sizes == "last" and size < full)
        if opens and samples > full and samples % full:
            size, batches = None, steps
            place = np.minimum(first + full * np.arange(batches + 1), samples)
        spec: Any = tf.TensorSpec([] if size else [None], tf.int64)
        with tf.device(HOST):
            place = tf.constant(place, tf.int64)
        order = self.position.indices()
        if order is not None:
            if self._order is None or self._order[0] is not order:  # created once for all chunks of a pass
                self._order = order, [copy for (copy,) in self._on_devices([order])]
            place = (self._order[1], place)
            spec = ([tf.TensorSpec([None], tf.int64)] * len(self.devices), spec)
        reader = ArrayReader(str(self._signature), size, self.devices, order is not None)
        return Chunk(
            (self._copies, place),
            batches,
            size,
            reader,
            signature=([self._signature] * len(self.devices), spec),
            part_reader=reader.read if len(self.devices) > 1 else None,
        )

    def _content(self) -> str | None:
        return checksum(self._copies[0])

    def _on_devices(self, leaves: list[Any]) -> list[list[Any]]:
        """Return, for each device, the arrays as tensors on it."""
        copies = []
        for device in self.devices:
            with tf.device(device):
                copies.append([as_resident(leaf) for leaf in leaves])
        return copies


class StreamedArrays(FedSource):
    """Arrays that are too large to be copied, or are in files: only the samples of the next batches are read."""

    resume_by = "index"

    def __init__(self, arrays: Any, order: SampleOrder, steady: bool) -> None:
        self._arrays = arrays
        self.position: SampleOrder = order
        self.batch_size = order.batch_size
        super().__init__(batch_spec(self._samples_from(0, 1, None)), steady)

    def _content(self) -> str | None:
        return checksum(self._arrays)

    def _samples_from(self, start: int, count: int, order: np.ndarray | None) -> Any:
        chosen: Any = slice(start, start + count) if order is None else order[start : start + count]

        def read(leaf: Any) -> Any:
            if isinstance(leaf, np.ndarray):
                part = np.asarray(leaf[chosen])
            elif order is None:
                part = slice_samples(leaf, start, start + count)
            else:
                part = take_samples(leaf, tf.constant(chosen))
            return cast_floats(part)

        with tf.device("CPU:0"):
            return tf.nest.map_structure(read, self._arrays)

    def _batches(self) -> Iterator[tuple[Any, BatchForm]]:
        order = copy.copy(self.position)
        while order.count_left(1):
            first, _, size = order.next_batches(1)
            order.advance(1)
            batch = self._samples_from(first, size, order.indices())
            yield batch, form_of(batch)
