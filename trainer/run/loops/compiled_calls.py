"""The compiled calls of a pass over the data: their length, their chunks, and the step of an error."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ....callbacks.call_schedule import steps_until_call
from ...inputs import Chunk, Source
from ..worker_settlement import Workers

UNKNOWN = -1  # number of completed steps, where it is not known
_SHARE_OF_CALLS = 0.05  # the overhead's share of the time of compiled calls
_LONGEST = 1.0  # seconds that a callback may have to wait


class CompiledCall:
    """The chunks of one compiled call. A chunk has batches of one size, so the last partial batch is a separate one."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.steps = sum(chunk.steps for chunk in chunks)

    def report(self, source: Source, done: int) -> None:
        """Reports to the source that its last chunk gave fewer steps than planned: `done` steps of the call ran."""
        if done < self.steps:
            source.drawn(self.chunks[-1].steps - (self.steps - done))


def compiled_calls(source: Source, next_steps: Callable[[], int], workers: Workers) -> Iterator[CompiledCall]:
    """The compiled calls of a pass: each with `next_steps()` steps, fewer at its end; none after it returns 0.

    An error of the input is raised after the steps on the batches before it.
    """
    failure: Exception | None = None
    while failure is None:
        wanted = workers.settle(next_steps())
        chunks, chunk = list[Chunk](), None
        while wanted > 0:
            try:
                chunk = source.take(wanted)
            except Exception as error:
                failure, chunk = error, None
            if chunk is None:
                break
            chunks.append(chunk)
            wanted -= chunk.steps
            if chunk.open_ended:
                break
        call = CompiledCall(chunks)
        try:
            workers.check_taken(source, call.steps)
        except ValueError as mismatch:
            if failure is not None:
                raise failure from mismatch
            raise
        if chunks:
            yield call
        if chunk is None and failure is None:
            return
    raise failure


class CallLength:
    """Sizes compiled calls so that each lasts about `target` seconds, and ends where a callback must be called.

    Where the overhead of a call is large (`call_seconds` of the function: thousands of variables), it is longer, up to 1 s.
    If the user set the steps (`fixed`), every call has so many, and callbacks wait for its end. `phase` is "train", "test"
    or "predict", `step` the completed steps of the epoch. `function` runs the steps: it reports whether the last call
    included compilation (`fresh`), and keeps the size (`usual_steps`) for the next epoch.
    """

    def __init__(
        self,
        fixed: int | None,
        callbacks: list[Any],
        phase: str = "train",
        step: int = 0,
        function: Any = None,
        target: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._fixed, self._callbacks, self._phase = fixed, callbacks, phase
        self.step = step
        self._target, self._clock = target, clock
        self._function = function
        self._steps = getattr(function, "usual_steps", 1)
        self._began = 0.0

    def next(self) -> int:
        """The number of steps of the next compiled call."""
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

    def last_batch(self, done: int) -> int:
        """The batch number for callbacks at the end of a compiled call of `done` steps.

        It is that of the last batch. Where the user set the steps, it is Keras' number, which assumes that every compiled
        call is full, including the last of an epoch.
        """
        return self.step - done + (done if self._fixed is None else self._fixed) - 1

    def done(self, steps: int) -> None:
        """Lets the next compiled call grow or shrink: this one ended after `steps` steps, and its results are ready."""
        seconds = self._clock() - self._began
        self.step += steps
        if steps < 1:
            return
        function = self._function
        if not getattr(function, "fresh", False):
            overhead = getattr(function, "call_seconds", 0.0)
            target = max(self._target, min(overhead / _SHARE_OF_CALLS, _LONGEST))
            wanted = int(target * steps / max(seconds, 1e-6))
            self._steps = max(1, min(wanted, 8 * steps))
            if function is not None:
                function.usual_steps = self._steps


@contextlib.contextmanager
def noted(reached: Callable[[], int | None], step: int) -> Iterator[None]:
    """Adds a note with the step to an error of a compiled function.

    `reached()` is the number of steps of the last call that ran, if known; `step` that of the epoch before this call.
    """
    try:
        yield
    except tf.errors.OpError as error:
        ran = reached()
        if ran is not None:
            where = f"step {step + ran} of the epoch (counted from 0)"
            error.add_note(f"Raised at {where}, by its batch or by its computation.")
        raise
