"""Batches from arrays: an order of rows for every epoch, and the rows read in that order.

The order is a pure function of (seed, pass over the data): the same for every number of replicas and after a
resume.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from .convert import as_resident
from .readers import gather_reader, slice_reader
from .rows import batch_spec
from .source import Chunk

RAN_OUT = (
    "Your input ran out of data; interrupting training. Make sure that your dataset or generator can generate "
    "at least `steps_per_epoch * epochs` batches. You may need to use the `.repeat()` function when building your "
    "dataset."
)


class RowOrder:
    """Which rows make up which batch. Owns the calendar of passes and batches; holds no data.

    Without `steps_per_epoch` an epoch is one pass over the rows. With it, a pass lasts for as many epochs as
    it has steps for; epoch `e` always starts at the same row, so a run can be resumed at any epoch.
    """

    def __init__(
        self, rows: int, batch_rows: int, shuffle: bool | str, seed: int, steps_per_epoch: int | None
    ) -> None:
        self.rows = rows
        self.batch_rows = batch_rows
        self.shuffle = shuffle
        self.seed = int(seed)
        self.batches = math.ceil(rows / batch_rows)
        self.steps_per_epoch = steps_per_epoch or self.batches
        self.epoch = 0
        self.step = 0
        self._kept: tuple[tuple[int, int], np.ndarray] | None = None

    def begin(self, epoch: int, step: int = 0) -> None:
        """Goes to a step of an epoch."""
        self.epoch, self.step = int(epoch), int(step)

    def next_run(self, max_steps: int, most_rows: int | None = None) -> tuple[int, int, int, int] | None:
        """The next batches of equal rows, and goes past them.

        Args:
            max_steps: int; the most batches.
            most_rows: int or None; the most rows in all (but at least one batch).

        Returns:
            `(pass, first row, batches, rows of each)`, or None at the end of the epoch.
        """
        epochs_per_pass = math.ceil(self.batches / self.steps_per_epoch)
        a_pass, part = divmod(self.epoch, epochs_per_pass)
        batch = part * self.steps_per_epoch + self.step
        left = min(self.steps_per_epoch - self.step, self.batches - batch)
        if left <= 0:
            return None
        full = self.rows // self.batch_rows - batch
        if full <= 0:
            self.step += 1
            return a_pass, batch * self.batch_rows, 1, self.rows - batch * self.batch_rows
        steps = min(max_steps, left, full)
        if most_rows is not None:
            steps = max(1, min(steps, most_rows // self.batch_rows))
        self.step += steps
        return a_pass, batch * self.batch_rows, steps, self.batch_rows

    def warn_if_short(self) -> None:
        """Warns, as Keras does, if the pass ended before the epoch had its steps. Called at the end of an epoch."""
        if self.step < self.steps_per_epoch:
            warnings.warn(RAN_OUT, stacklevel=3)

    def indices(self, a_pass: int) -> np.ndarray | None:
        """The rows in the order of a pass, int64 `[rows]`; None where that is the order of the arrays."""
        if not self.shuffle:
            return None
        key = (a_pass, self.seed)
        if self._kept is None or self._kept[0] != key:
            random = np.random.default_rng([self.seed % 2**63, a_pass])
            if self.shuffle == "batch":
                order = np.lexsort((random.random(self.rows), np.arange(self.rows) // self.batch_rows))
            else:
                order = random.permutation(self.rows)
            self._kept = key, order.astype(np.int64)
        return self._kept[1]

    def state(self) -> dict[str, Any]:
        """The position and what it depends on."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "seed": self.seed,
            "rows": self.rows,
            "batch_rows": self.batch_rows,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position of `state()`; the order of the rows is the one of then.

        Raises:
            ValueError: where the arrays or the batches are others.
        """
        for key, word in (("rows", "x"), ("batch_rows", "batch_size")):
            if int(state[key]) != getattr(self, key):
                raise ValueError(
                    f"The position to resume at was saved with {key}={int(state[key])}, but {word} gives "
                    f"{key}={getattr(self, key)}; resume with the data and the global batch of the first run."
                )
        self.seed = int(state["seed"])
        self.begin(state["epoch"], state["step"])


class ArraySource:
    """Batches from arrays that stay in the memory of one device.

    Owns the tensors. A chunk is the tensors and the numbers of its rows, so its size does not depend on the
    steps.
    """

    per_worker = False
    resume_by = "index"

    def __init__(self, arrays: Any, order: RowOrder, device: str = "CPU:0") -> None:
        """Copies the arrays to the device.

        Args:
            arrays: nest of NumPy arrays and tensors, as the tuple `(x,)`, `(x, y)` or `(x, y,
                sample_weight)`.
            order: the order of their rows.
            device: where the tensors stay.
        """
        with tf.device(device):
            self._arrays = tf.nest.map_structure(as_resident, arrays)
        self._order = order
        self._pass_on_device: tuple[np.ndarray, tf.Tensor] | None = None
        self._signature = batch_spec(self._arrays)
        self._layout = str(self._signature)
        self.spec = batch_spec(_one_batch(self._arrays))
        self.batch_rows: int | None = order.batch_rows
        self.steps_per_epoch: int | None = order.steps_per_epoch

    def begin_epoch(self, epoch: int) -> None:
        """Starts the pass over the data that belongs to `epoch`."""
        self._order.begin(epoch)

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk; the last batch of a pass is a chunk of its own when it is smaller."""
        run = self._order.next_run(max_steps)
        if run is None:
            self._order.warn_if_short()
            return None
        a_pass, start, steps, rows = run
        order = self._order.indices(a_pass)
        if order is None:
            place, reader, spec = (
                tf.constant(start, tf.int64),
                slice_reader(rows, self._layout),
                tf.TensorSpec([], tf.int64),
            )
        else:
            place = (self._order_of(order), tf.constant(start, tf.int64))
            spec = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64))
            reader = gather_reader(rows, self._layout)
        signature = (self._signature, spec)
        return Chunk((self._arrays, place), steps, rows, reader, signature=signature)

    def _order_of(self, order: np.ndarray) -> tf.Tensor:
        """The order of a pass as a tensor, made once for all of its chunks."""
        if self._pass_on_device is None or self._pass_on_device[0] is not order:
            self._pass_on_device = order, tf.constant(order)
        return self._pass_on_device[1]

    def drawn(self, steps: int) -> None:
        """Every step of a chunk is there."""

    def state(self) -> dict[str, Any]:
        """The position after the last chunk."""
        return self._order.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position, at no cost."""
        self._order.restore(state)

    def close(self) -> None:
        """Nothing to give back."""


def _one_batch(arrays: Any) -> Any:
    """The first row, to learn the kinds of tensors that batches are made of."""
    return slice_reader(1)((arrays, tf.constant(0, tf.int64)), tf.constant(0))
