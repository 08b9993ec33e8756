"""The compiled calls of a pass over the data: the number of their steps, their chunks, and the step of an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from ..inputs import Chunk, Source
from .worker_settlement import Workers

UNKNOWN = -1  # number of completed steps, where it is not known


class Execution:
    """The chunks of one compiled call. A chunk has batches of one size, so the last partial batch is a separate one."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.steps = sum(chunk.steps for chunk in chunks)

    def tell(self, source: Source, done: int) -> None:
        """Reports to the source that its last chunk gave fewer steps than planned: `done` steps of the call ran."""
        if done < self.steps:
            source.drawn(self.chunks[-1].steps - (self.steps - done))


def executions(source: Source, next_steps: Callable[[], int], workers: Workers) -> Iterator[Execution]:
    """The compiled calls of a pass: each with `next_steps()` steps, fewer at its end; none after it returns 0.

    An error of the input is raised after the steps on the batches before it.
    """
    failure: Exception | None = None
    while failure is None:
        wanted = workers.settle(next_steps())
        chunks: list[Chunk] = []
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
        try:
            workers.check_taken(source, sum(chunk.steps for chunk in chunks))
        except ValueError as mismatch:
            if failure is not None:
                raise failure from mismatch
            raise
        if chunks:
            yield Execution(chunks)
        elif failure is None:
            return
    raise failure


@contextlib.contextmanager
def noted(reached: Callable[[], int | None], step: int) -> Iterator[None]:
    """Adds a note with the step to an error of a compiled function.

    Args:
        reached: () -> the number of steps of the last call that ran; None if not known.
        step: int; the steps of the epoch before this call.
    """
    try:
        yield
    except tf.errors.OpError as error:
        ran = reached()
        if ran is not None:
            where = f"step {step + ran} of the epoch (counted from 0)"
            error.add_note(f"Raised at {where}, by its batch or by its computation.")
        raise
