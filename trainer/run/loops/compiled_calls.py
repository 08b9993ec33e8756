"""Compiled calls: their chunks, their length, and the step of an error."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ....callbacks.call_schedule import steps_until_call
from ....compat.keras_private.variables import plain_variable
from ...inputs import Chunk
from ...inputs.batch import varies

UNKNOWN = -1  # number of completed steps, where it is not known
_SHARE_OF_CALLS = 0.01  # the most of the time of compiled calls that their overhead may take
_LONGEST = 1.0  # seconds that a callback may have to wait
MOST_OF_WORKER = 512  # steps of one call of a worker of parameter servers


class CompiledCall:
    """The chunks of a compiled call, each of batches of one size; `first` is the number of its first step in the epoch."""

    def __init__(self, chunks: list[Chunk], first: int = 0) -> None:
        self.chunks, self.first = chunks, first
        self.steps = sum(chunk.steps for chunk in chunks)


class CallLength:
    """Sizes compiled calls so that each lasts about `target` seconds, and ends where a callback must be called.

    Where the overhead of a call is large (`call_seconds` of the function: thousands of variables), it is longer, up to 1 s.
    If the user set the steps (`fixed`), every call has so many, and callbacks wait for its end. `phase` is "train", "test"
    or "predict", `step` the completed steps of the epoch. `function` runs the steps: it reports whether the last call
    included compilation (`fresh`), and keeps the size (`usual_steps`) for the next epoch.

    The calls of several `workers` of parameter servers overlap: a result should come every `target / workers` seconds. The
    calls that begin before the first results have come are not judged: they have compiled, or waited for it.
    """

    def __init__(
        self,
        fixed: int | None,
        callbacks: Sequence[Any] = (),
        phase: str = "train",
        step: int = 0,
        function: Any = None,
        target: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
        workers: int = 0,
    ) -> None:
        self._fixed, self._callbacks, self._phase = fixed, callbacks, phase
        self.step = step
        self._target, self._clock, self._workers = target, clock, workers
        self._function = function
        self._steps = getattr(function, "usual_steps", 1)
        self._began, self._results = clock(), 0

    def next(self) -> int:
        """Return the number of steps of the next compiled call."""
        self._began = self._clock()
        if self._fixed is not None:
            return self._fixed
        recorder = getattr(self._function, "recorder", None)
        steps = self._steps if recorder is None else min(self._steps, recorder.most_steps)
        for callback in self._callbacks:
            until = steps_until_call(callback, self.step, self._phase, records_logs=recorder is not None)
            if until is not None:
                steps = min(steps, max(1, until))
        return steps

    def of_worker(self, left: int | None, *bounds: int | None) -> int:
        """Return the steps of a worker's next call, within `bounds`; `left` in the epoch, so that workers end together."""
        steps = self._steps if self._fixed is None else self._fixed
        if self._fixed is None and left is not None and self._workers > 1:
            steps = min(steps, max(1, left // (2 * self._workers)))
        return max(1, min([steps, *(bound for bound in bounds if bound is not None)]))

    def last_batch(self, done: int) -> int:
        """Return the last batch's number for callbacks; with fixed steps Keras', as if every call were full."""
        return self.step - 1 if self._fixed is None or self._workers else self.step - done + self._fixed - 1

    def note_call(self, steps: int) -> None:
        """Let the next compiled call grow or shrink: this one ended after `steps` steps, and its results are ready."""
        now, function, workers = self._clock(), self._function, self._workers
        seconds = now - self._began
        self.step += steps
        if workers:
            self._began = now
        self._results += 1
        if steps < 1 or getattr(function, "fresh", False) or self._results <= workers:
            return
        overhead = getattr(function, "call_seconds", 0.0)
        target = max(self._target, min(overhead / _SHARE_OF_CALLS, _LONGEST)) / max(1, workers)
        most = 8 * steps if not workers else min(2 * self._steps, MOST_OF_WORKER)
        self._steps = max(1, min(int(target * steps / max(seconds, 1e-6)), most))
        if function is not None and not workers:
            function.usual_steps = self._steps


class Reached:
    """The step that the running compiled call has reached, and the sizes of its batch, for an error."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self.steps = plain_variable(tf.constant(UNKNOWN))  # that ran before
            self.sizes = plain_variable(tf.zeros([0], tf.int32), [None])  # of arrays that vary in shape

    def begin(self, i: Any) -> None:
        """Record that step `i` of the call begins."""
        self.steps.assign(i)

    def note_sizes(self, batch: Any) -> list[tf.Operation]:
        """Return the operation that records the sizes after the samples, if those of batches vary."""
        arrays = [leaf for leaf in tf.nest.flatten(batch) if varies(leaf)]
        if not arrays:
            return []
        with tf.device("CPU:0"):
            # In an `Optional`, as Grappler would else put the sizes that the step takes for those that the batch has.
            kept = [tf.experimental.Optional.from_value(array).get_value() for array in arrays]
            sizes = tf.concat([tf.shape(array)[1:] for array in kept], 0)
            return [self.sizes.assign(sizes, read_value=False)]

    def count(self) -> int | None:
        """Return, after an error, the steps of the last call that ran before; None if that is not known."""
        steps = int(self.steps)
        return None if steps == UNKNOWN else steps


@contextlib.contextmanager
def note_step(reached: Reached, step: int) -> Iterator[None]:
    """Add the step to an error: those that this call has reached, if known, after `step` steps of the epoch."""
    try:
        yield
    except tf.errors.OpError as error:
        ran = reached.count()
        if ran is not None:
            where = f"step {step + ran} of the epoch (counted from 0)"
            error.add_note(f"Raised at {where}, by its batch or by its computation.")
            error.varying_batch = step + ran, reached.sizes.numpy()  # pyright: ignore[reportAttributeAccessIssue]
        raise
