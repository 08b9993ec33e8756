"""The position of a source: step, epoch, pass over the data, and the order of the samples there.

The order is a pure function of (seed, pass over the data): the same for every number of replicas and after a resume.
"""

import math
import warnings
from typing import Any

import numpy as np

RAN_OUT = (
    "Your input ran out of data; interrupting training. Make sure that your dataset or generator can generate "
    "at least `steps_per_epoch * epochs` batches. You may need to use the `.repeat()` function when building your "
    "dataset."
)


class Position:
    """The position in data that are read from beginning to end. Holds no data.

    Without `steps_per_epoch` an epoch is one pass over the data. With it, a pass lasts for as many epochs as it has
    steps for, and the epoch in which it ends is a short one.

    Args:
        given_steps: `steps_per_epoch` as the user passed it.
        batches: of a pass; None: not known before its end is seen.
        expected: the number of batches that the data declares, if it may yield a different number.
        one_pass: whether no second pass can be started (of an iterator).

    Attributes:
        step: the next step of the epoch.
        passes: the number of earlier passes.
        taken: the batches of this pass before the next one.
        ended: whether the end of the pass has been seen.
        steps_per_epoch: None until it is known.
    """

    def __init__(
        self,
        given_steps: int | None,
        batches: int | None = None,
        expected: int | None = None,
        one_pass: bool = False,
    ) -> None:
        self.given_steps, self._batches, self._expected = given_steps, batches, batches or expected
        self._one_pass = one_pass
        self.steps_per_epoch = given_steps or batches or expected
        self.epoch = self.step = self.passes = self.taken = 0
        self.ended = False

    def begin(self, epoch: int) -> bool:
        """Go to the first step of an epoch; return whether another pass over the data begins with it."""
        over = self.ended or (self._expected is not None and self.taken >= self._expected)
        continues = self.given_steps is not None and epoch == self.epoch + 1 and not over
        another = not self._one_pass and not continues and (self.taken > 0 or over)
        if another:
            self.passes, self.taken, self.ended = self.passes + 1, 0, False
        self.epoch, self.step = epoch, 0
        return another

    def is_over(self) -> bool:
        """Return whether the pass has no further batch."""
        return self.ended or (self._batches is not None and self.taken >= self._batches)

    def count_left(self, most: int) -> int:
        """Return how many of the next `most` steps are in this epoch, as far as that is known."""
        if self.is_over():
            return 0
        if self.given_steps is not None:
            most = min(most, self.given_steps - self.step)
        if self._batches is not None:
            most = min(most, self._batches - self.taken)
        return max(0, most)

    def advance(self, steps: int) -> None:
        """Advance by `steps` steps, or go back if it is negative."""
        self.step += steps
        self.taken += steps

    def end_epoch(self) -> None:
        """Record that no step is left: without `steps_per_epoch`, so many make an epoch. Warn if there were too few."""
        if self.step < (self.given_steps or 0) or (self._one_pass and self.step == 0):
            warnings.warn(RAN_OUT, stacklevel=4)
        elif not self._one_pass and self.given_steps is None:
            self.steps_per_epoch = self.step

    def identity(self) -> dict[str, Any]:
        """Return the constant part that cannot be restored."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the position as numbers."""
        names = ("epoch", "step", "passes", "taken", "ended")
        return {name: int(getattr(self, name)) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position of `state()`."""
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self.passes, self.taken = int(state["passes"]), int(state["taken"])
        self.ended = bool(state.get("ended", False))


class SampleOrder(Position):
    """The position in samples that can be read by their number, and the division of samples into batches.

    Epoch `e` always starts at the same sample, so a run can be resumed at any epoch. With `shuffle` every pass has its own
    random order, a function of the seed; with "batch", it is inside each batch.
    """

    def __init__(
        self, samples: int, batch_size: int, shuffle: bool | str, seed: int, given_steps: int | None
    ) -> None:
        super().__init__(given_steps, math.ceil(samples / batch_size))
        self.samples, self.batch_size = samples, batch_size
        self._shuffle, self._seed = shuffle, int(seed)
        self._order: tuple[tuple[int, int], np.ndarray] | None = None

    def begin(self, epoch: int, step: int = 0) -> bool:
        """Go to a step of any epoch; return whether that begins a pass over the data."""
        assert self._batches is not None and self.steps_per_epoch is not None
        self.passes, part = divmod(int(epoch), math.ceil(self._batches / self.steps_per_epoch))
        self.epoch, self.step = int(epoch), int(step)
        self.taken, self.ended = part * self.steps_per_epoch + self.step, False
        return self.taken == 0

    def next_batches(self, steps: int) -> tuple[int, int, int]:
        """Return (first sample in the order of the pass, batches, their size) of the next batches, at most `steps`."""
        first = self.taken * self.batch_size
        full = (self.samples - first) // self.batch_size
        return (first, min(steps, full), self.batch_size) if full else (first, 1, self.samples - first)

    def indices(self) -> np.ndarray | None:
        """Return the numbers of the samples in this pass's order, int64 `(samples,)`; None for the order of the data."""
        if not self._shuffle:
            return None
        key = (self.passes, self._seed)
        if self._order is None or self._order[0] != key:
            random = np.random.default_rng([self._seed % 2**63, self.passes])
            if self._shuffle == "batch":
                batches = np.arange(self.samples) // self.batch_size
                order = np.lexsort((random.random(self.samples), batches))
            else:
                order = random.permutation(self.samples)
            self._order = key, order.astype(np.int64)
        return self._order[1]

    def identity(self) -> dict[str, Any]:
        """Return whether the samples are shuffled."""
        return {"shuffle": self._shuffle}

    def state(self) -> dict[str, Any]:
        """Return the position and its dependencies; the names are those of backups."""
        data = {"seed": self._seed, "rows": self.samples, "batch_rows": self.batch_size}
        return {"epoch": self.epoch, "step": self.step, **data}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position of `state()` of the same number of samples; their order is the saved one."""
        for key, here, word in (("rows", self.samples, "epoch"), ("batch_rows", self.batch_size, "batch")):
            if int(state[key]) != here:
                raise ValueError(
                    f"The saved position belongs to a fit with {int(state[key])} samples in each {word}, but this one has "
                    f"{here}: resume with the data and the global batch of the first run."
                )
        self._seed = int(state["seed"])
        self.begin(state["epoch"], state["step"])
