"""What the loop asks of an input: chunks of steps, a position, and a way back to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .calendar import Calendar
from .class_weights import ClassWeights, weighted_parts, weighted_reader, weighted_spec


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The input of the next execution: up to `steps` global batches.

    Attributes:
        inputs: a nest of tensors (or a `tf.data.Iterator`); an argument of the compiled function, so chunks of one
            layout must have one signature.
        steps: int; the batches in the chunk, or the most that may be drawn when `open_ended`.
        rows: int or None; rows of every batch in the chunk, where they are all the same and known.
        reader: `reader(inputs, i)` is batch `i` (int32 scalar tensor, 0 to steps - 1) of the chunk, in the structure
            that a step gets (see `structure.py`), with the rows of the whole global batch. It is called while tracing,
            must be a pure function of its arguments, and must be the same object for chunks of one layout (the
            compiled function is kept by it). When `open_ended`, it gives a `tf.experimental.Optional` of the batch.
        open_ended: whether the data may end before `steps` batches have been drawn.
        signature: nest of `tf.TypeSpec` that `inputs` matches in every chunk with this reader (the number of steps and
            of rows in the data left open), so that one trace serves them all; None: as the inputs are.
        per_worker: whether the batches hold this worker's rows only; then the chunk is `open_ended`.
        usual_rows: int or None; of batches that are drawn from an iterator, the rows that most have, where XLA may be
            given these. Others may come too.
        spec: nest of `tf.TypeSpec` of a batch, where `usual_rows` is known.
        part_reader: `part_reader(inputs, i, replica, first, last)` is rows `first` to `last - 1` of batch `i`, read on the
            device of this process' replica number `replica`, where every replica has the data at hand; else None.
    """

    inputs: Any
    steps: int
    rows: int | None
    reader: Callable[[Any, Any], Any]
    open_ended: bool = False
    signature: Any = None
    per_worker: bool = False
    usual_rows: int | None = None
    spec: Any = None
    part_reader: Callable[..., Any] | None = None


class Source:
    """Global batches, in order, with a position that can be saved and restored.

    A kind of input says how batches are read (`_read`) and what has to happen where a position changes. The position
    itself is the calendar's.

    Attributes:
        calendar: where in the epochs and in the data the source is.
        spec: nest of `tf.TypeSpec` in the structure of a batch; its rows are None.
        batch_rows: int or None; rows of a full global batch, where known.
        usual_rows: int or None; rows that most batches have, where they may differ.
        open_rows: "no", "last" or "all"; which batches are read by a reader that does not know their rows, so that one
            trace serves all sizes. Set by the loop; only arrays look at it, where the last batch of a pass is smaller.
        rows: int or None; rows of the data (batches of a PyDataset), where known.
        held_rows: int or None; rows of the tensors that each chunk holds, where these are all of the data: XLA compiles for
            each number of them.
        per_worker: bool; False: every worker's source yields the whole global batch, of which its replicas take their
            rows; True: the source yields this worker's rows only (a function of `tf.distribute.InputContext`).
        resume_by: "index" | "iterator" | "skip"; how `restore` finds the position again.
        rewinds: bool; whether the data can be read again from its beginning.
        targets: the arrays of `y`, where they are given, until they have been checked.
        home: str; a sentence that says where the data lives, where that had to be decided.
        begun_again: bool; whether, after a chunk that gave no batch, another pass has begun in the same epoch.
        inexact: str or None; a sentence that says why a resumed training may get other batches.
        owned: generators and variables that this input advances, maybe ahead of the steps: `restore` restores them.
    """

    calendar: Calendar
    spec: Any
    batch_rows: int | None = None
    usual_rows: int | None = None
    open_rows = "no"
    rows: int | None = None
    held_rows: int | None = None
    per_worker = False
    resume_by: Any = "skip"
    rewinds = True
    targets: Any = None
    home = ""
    inexact: str | None = None
    owned: Sequence[Any] = ()
    begun_again = False
    _class_weights: ClassWeights | None = None

    def _read(self, steps: int) -> Chunk | None:
        """The next chunk of at most `steps` steps, which the epoch has; None where the data has ended."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch; None until it is known: after one epoch of an input of unknown length."""
        return self.calendar.steps_per_epoch

    def weigh_classes(self, weights: ClassWeights) -> None:
        """Adds to every batch `(x, y)` the weights of its rows' classes as `sample_weight`."""
        self._class_weights, self.spec = weights, weighted_spec(self.spec)

    def begin_epoch(self, epoch: int) -> None:
        """Starts the pass over the data that belongs to `epoch` (0-based), at its first step."""
        self.close()
        self.calendar.begin(epoch)

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk of at most `max_steps` steps, or None at the end of the epoch.

        Raises:
            The error of the user's own code, with the number of the batch as a note.
        """
        steps = self.calendar.left(max_steps)
        chunk = self._read(steps) if steps else None
        if chunk is None:
            self.calendar.end_epoch()
            return None
        self.calendar.advance(chunk.steps)
        if self._class_weights is None:
            return chunk
        spec = None if chunk.spec is None else weighted_spec(chunk.spec)
        reader = weighted_reader(chunk.reader, chunk.open_ended, self._class_weights)
        parts = chunk.part_reader and weighted_parts(chunk.part_reader, self._class_weights)
        return dataclasses.replace(chunk, reader=reader, spec=spec, part_reader=parts)

    def drawn(self, steps: int) -> None:
        """The loop says how many steps the last chunk gave; only needed after an `open_ended` one that gave fewer.

        Raises:
            ValueError: if there is no data at all.
        """

    def identity(self) -> dict[str, Any]:
        """What tells this input from others, before anything was drawn: JSON values, None for what cannot be known.

        Called once in a `fit` with backups; a resumed one compares what is known on both sides.
        """
        weights = self._class_weights
        return {
            "content": self._content(),
            "pipeline graph": None,
            "class weights": weights and [list(part) for part in weights],
            **self.calendar.identity(),
        }

    def _content(self) -> str | None:
        """A checksum of what the data holds."""
        return None

    def state(self) -> dict[str, Any]:
        """The position after the last chunk taken, as a flat dict of NumPy arrays, numbers, strings and bytes."""
        return self.calendar.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state()` gave, in a source made from the same arguments."""
        self.close()
        self.calendar.restore(state)

    def close(self) -> None:
        """Gives back threads, files and iterators."""
