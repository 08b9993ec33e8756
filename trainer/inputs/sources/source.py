"""The interface of an input for the loop: chunks of steps, a position, and the return to a saved position."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..class_weights import ClassWeights, WeightedReader
from ..position import Position
from ..value_checks import LabelRule, check_values


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The input of the next compiled call: up to `steps` global batches.

    Attributes:
        inputs: a nest of tensors (or a `tf.data.Iterator`); an argument of the compiled function, so chunks of one
            layout must have one signature.
        steps: int; the batches in the chunk, or the most that may be drawn when `open_ended`.
        batch_size: int or None; the samples of every batch in the chunk, where they are all the same and known.
        reader: `reader(inputs, i)` is batch `i` (int32 scalar tensor, 0 to steps - 1) of the chunk, in the structure
            that a step gets (see `batch.py`), with the samples of the whole global batch. It is called while tracing,
            must be a pure function of its arguments, and must be equal for chunks of one layout (the compiled function
            is kept by it). When `open_ended`, it yields a `tf.experimental.Optional` of the batch.
        open_ended: whether the data may end before `steps` batches have been drawn.
        signature: nest of `tf.TypeSpec` that `inputs` matches in every chunk with this reader (the number of steps and
            of samples in the data left open), so that one trace serves them all; None: as the inputs are.
        per_worker: whether the batches hold this worker's samples only; then the chunk is `open_ended`.
        usual_batch_size: int or None; of batches that are drawn from an iterator, the most frequent number of samples, where
            XLA may be given these. Other numbers may occur.
        part_reader: `part_reader(inputs, i, replica, first, last)` is samples `first` to `last - 1` of batch `i`, read on
            the device of this process' replica number `replica`, where every replica has a copy of the data; else None.
    """

    inputs: Any
    steps: int
    batch_size: int | None
    reader: Callable[[Any, Any], Any]
    open_ended: bool = False
    signature: Any = None
    per_worker: bool = False
    usual_batch_size: int | None = None
    part_reader: Callable[..., Any] | None = None

    def batch(self, i: int) -> Any:
        """Return batch `i`; None if the data has ended. Context: host."""
        batch = self.reader(self.inputs, tf.constant(i))
        if not self.open_ended:
            return batch
        return batch.get_value() if bool(batch.has_value()) else None


class Source:
    """Global batches, in order, with a position that can be saved and restored.

    A kind of input defines how batches are read (`_read`) and what happens when the position changes.

    Attributes:
        position: the position of the source in the epochs and in the data.
        spec: nest of `tf.TypeSpec` in the structure of a batch; its number of samples is None.
        batch_size: int or None; samples of a full global batch, where known.
        usual_batch_size: int or None; samples that most batches have, where they may differ.
        open_sizes: "no", "last" or "all"; which batches are read by a reader that does not know their size, so that one
            trace serves all sizes. Set by the loop; only arrays use it, where the last batch of a pass is smaller.
        held_samples: int or None; samples of the tensors that each chunk holds, where these are all of the data: XLA
            compiles for each number of them.
        per_worker: bool; False: every worker's source yields the whole global batch, of which its replicas take their
            samples; True: the source yields this worker's samples only (a function of `tf.distribute.InputContext`).
        resume_by: "index" | "iterator" | "skip"; how `restore` finds the position again.
        passes: int; over the data in this call of the model. Set by the loop.
        rewinds: bool; whether the data can be read again from its beginning.
        targets: the arrays of `y`, if passed, until they have been checked.
        home: str; a sentence about the device that holds the data, where that had to be chosen.
        inexact: str or None; a sentence about the reason why a resumed run may get other batches.
        own_state: generators and variables that this input advances, maybe ahead of the steps: `restore` restores them.
        read: int; batches of this pass that the host has read, where workers compare them.
        digest: int64 `(tensors, 2)`, of what was read so far, where workers read the same data and compare it; else None.
        class_weights: added to every batch `(x, y)` as the `sample_weight` of its samples; None: no weights.
    """

    position: Position
    spec: Any
    batch_size: int | None = None
    usual_batch_size: int | None = None
    open_sizes = "no"
    held_samples: int | None = None
    per_worker = False
    resume_by: Any = "skip"
    passes = 1
    rewinds = True
    targets: Any = None
    home = ""
    inexact: str | None = None
    own_state: Sequence[Any] = ()
    read = 0
    digest: Any = None
    class_weights: ClassWeights | None = None

    def _read(self, steps: int) -> Chunk | None:
        """Return the next chunk of at most `steps` steps, which the epoch has; None where the data has ended."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch; None until they are known: after one epoch of an input of unknown length."""
        return self.position.steps_per_epoch

    def watch(self, named: Mapping[str, Any]) -> None:
        """Note from which generators the input draws, from now on, if it is to be resumed. `named`: those of callbacks."""

    def find_restored(self) -> Sequence[Any]:
        """Return the generators and variables that `restore` restores."""
        return self.own_state

    def check_values(self, rules: tuple[LabelRule, ...]) -> None:
        """Check labels by these rules, and that weights are finite: of arrays at once, else in each batch that is read."""
        targets, self.targets = self.targets, None
        check_values(y=targets, rules=rules)

    def begin_epoch(self, epoch: int) -> None:
        """Start the pass over the data that belongs to `epoch` (0-based), at its first step."""
        self.close()
        self.position.begin(epoch)

    def take(self, max_steps: int) -> Chunk | None:
        """Return the next chunk of at most `max_steps` steps, or None at the end of the epoch."""
        steps = self.position.count_left(max_steps)
        chunk = self._read(steps) if steps else None
        if chunk is None and self._begins_anew():
            chunk = self._read(steps)
        if chunk is None:
            self.position.end_epoch()
            return None
        self.position.advance(chunk.steps)
        if self.class_weights is None:
            return chunk
        reader = WeightedReader(chunk.reader, chunk.open_ended, self.class_weights)
        part_reader = chunk.part_reader and reader.read
        return dataclasses.replace(chunk, reader=reader, part_reader=part_reader)

    def _begins_anew(self) -> bool:
        """Begin another pass, if the data has ended with the last step of the epoch before."""
        another = self.rewinds and self.position.step == 0 < self.position.taken
        if another:
            self.begin_epoch(self.position.epoch)
        return another

    def note_drawn(self, steps: int) -> None:
        """Note how many steps the last chunk had; only needed after an `open_ended` one that had fewer."""

    def identity(self) -> dict[str, Any]:
        """Return the identity of this input for backups, before anything was drawn: JSON values, None for unknown ones."""
        weights = self.class_weights
        return {
            "content": self._content(),
            "pipeline": None,
            "class weights": weights and [list(part) for part in weights],
            **self.position.identity(),
        }

    def _content(self) -> str | None:
        """Return a checksum of the data."""
        return None

    def draws(self) -> bool:
        """Return whether its batches draw random numbers, which differ where workers draw for themselves."""
        return False

    def state(self) -> dict[str, Any]:
        """Return the position after the last chunk taken, as a flat dict of NumPy arrays, numbers, strings and bytes."""
        return self.position.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position from `state()`, in a source made from the same arguments."""
        self.close()
        self.position.restore(state)

    def close(self) -> None:
        """Release threads, files and iterators."""
