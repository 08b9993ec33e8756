"""The executions of an epoch: how many steps each has, what they are made of, and running one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ..inputs import Chunk, Source
from .worker_settlement import Workers


class Execution:
    """The chunks of one execution. A chunk holds batches of one size, so the last partial batch is one of its own."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.steps = sum(chunk.steps for chunk in chunks)

    def all_steps_ran(self, done: int) -> bool:
        """Whether the input may have more: an open-ended one that gave fewer steps has ended."""
        return done == self.steps


def executions(source: Source, steps: Any, workers: Workers) -> Any:
    """The epoch's executions: each as many steps as `steps()` says, fewer at its end; none after it says 0.

    An error of the input comes after the steps on the batches before it.
    """
    failure: Exception | None = None
    while failure is None:
        wanted = steps()
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
def noted(function: Any, step: int) -> Iterator[None]:
    """Lets an error of the compiled function pass with a note that says at which step it came.

    Args:
        function: `function.reached()` is the number of steps that it had run of its last call; None if not known.
        step: int; the steps of the epoch that were run before this call.
    """
    try:
        yield
    except tf.errors.OpError as error:
        reached = function.reached()
        if reached is not None:
            where = f"step {step + reached} of the epoch (counted from 0)"
            error.add_note(f"Raised at {where}, by its batch or by what was computed with it.")
        raise


def run(function: Any, execution: Execution, source: Source, step: int) -> tuple[int, dict[str, Any]]:
    """Runs an execution; returns the steps that the input gave, and the logs after the last.

    Args:
        function: the step function.
        execution: what is run.
        source: where it comes from.
        step: int; the steps of the epoch that were run before.

    Raises:
        The error of the input or of the model, with the number of the step as a note.
    """
    done, logs = 0, {}
    function.fresh = False
    for chunk in execution.chunks:
        with noted(function, step + done):
            ran, new = function(chunk)
        done += ran
        if ran:
            logs = new
        if ran < chunk.steps:
            source.drawn(ran)
            break
    return done, logs
