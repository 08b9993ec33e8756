"""The compiled calls of a pass over the data, in the order in which the host makes them."""

from collections.abc import Iterator

from ..inputs import Chunk
from .loops.compiled_calls import CallLength, CompiledCall
from .passes import Pass
from .worker_settlement import Workers


class Calls:
    """The compiled calls of a pass; an error of the input is raised after the steps on the batches before it."""

    def __init__(self, steps: Pass) -> None:
        self._pass, self._workers = steps, Workers(steps.model, steps.stop)
        self._function = steps.function
        self._ended = False
        hooks = steps.callbacks.callbacks
        self.length = CallLength(steps.fixed_steps, hooks, steps.phase, steps.step, steps.function)

    def __iter__(self) -> Iterator[CompiledCall]:
        failure: Exception | None = None
        source, workers = self._pass.source, self._workers
        while failure is None:
            wanted = workers.settle(self.length.next())
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
            call = CompiledCall(chunks, self.length.step)
            try:
                workers.check_taken(source, call.steps)
            except ValueError as mismatch:
                if failure is not None:
                    raise failure from mismatch
                raise
            if chunks:
                yield call
            if chunk is None and failure is None:
                workers.check_read(source)
                return
        raise failure

    def report(self, call: CompiledCall, done: int) -> None:
        """Tell the source where fewer steps ran than planned: the data has ended, or the loss was not finite."""
        missing, position = call.steps - done, self._pass.source.position
        if missing and self._function.is_halted():
            position.advance(-missing)
        elif missing:
            self._pass.source.note_drawn(call.chunks[-1].steps - missing)
        self._ended = missing > 0 and (done > 0 or self._pass.phase != "train" or position.is_over())

    def over(self) -> bool:
        """Whether no further call follows: the data has ended, or a callback ends the pass or has replaced its steps."""
        steps, model = self._pass, self._pass.model
        stopped = self._ended or (getattr(model, steps.stop) and not self._workers.several)
        steps.replaced = steps.phase == "train" and not stopped and model.train_function is not self._function
        if stopped:
            self._workers.check_read(steps.source)
        return stopped or steps.replaced
