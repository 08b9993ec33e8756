"""The number of steps per compiled call: it grows to the target time and stops where a callback must run."""

from __future__ import annotations

from typing import Any

import keras
from helpers import Clock

from unisono.trainer.run.loops.compiled_calls import CallLength


class At(keras.callbacks.Callback):
    """Must be called after every `every` steps."""

    def __init__(self, every: int | None) -> None:
        super().__init__()
        self.every = every

    def steps_until_call(self, step: int) -> int | None:
        return None if self.every is None else self.every - step % self.every


def length_of(steps: int | None = None, callbacks: Any = (), **arguments: Any) -> CallLength:
    return CallLength(steps, list(callbacks), clock=Clock(), **arguments)


def run(length: CallLength, seconds_a_step: float, executions: int) -> list[int]:
    taken = []
    for _ in range(executions):
        steps = length.next()
        length._clock.now += steps * seconds_a_step
        length.done(steps)
        taken.append(steps)
    return taken


def test_compiled_calls_grow_eightfold_until_they_last_the_target():
    assert run(length_of(target=0.1), 0.001, 6) == [1, 8, 64, 100, 100, 100]


class Compiled:
    """A step function; `fresh` if its last call compiled."""

    fresh = False
    usual_steps = 1
    call_seconds = 0.0

    def ended(self, execution, steps, seconds):
        pass


def test_compiled_call_that_compiled_does_not_count():
    function = Compiled()
    length = length_of(function=function, target=0.1)
    function.fresh = True
    assert run(length, 60.0, 1) == [1]
    function.fresh = False
    assert run(length, 0.001, 2) == [1, 8]


def test_size_is_kept_from_epoch_to_epoch():
    function = Compiled()
    run(length_of(function=function, target=0.1), 0.001, 5)
    assert run(length_of(function=function, target=0.1), 0.001, 1) == [100]


def test_compiled_calls_shrink_when_steps_become_slow():
    length = length_of(target=0.1)
    run(length, 0.001, 5)
    assert run(length, 0.05, 2) == [100, 2]


def test_slow_steps_are_taken_one_at_a_time():
    assert run(length_of(target=0.1), 3.0, 4) == [1, 1, 1, 1]


def test_compiled_calls_end_where_a_callback_calls():
    length = length_of(None, [At(None), At(7), At(5)], target=1.0)
    assert run(length, 0.0001, 6) == [1, 4, 2, 3, 4, 1]
    assert length.step == 15


def test_step_at_which_a_resumed_epoch_stands_is_respected():
    length = length_of(None, [At(5)], step=3)
    length._steps = 50
    assert length.next() == 2


def test_fixed_steps_hold_whatever_callbacks_want():
    assert run(length_of(3, [At(1)]), 1.0, 3) == [3, 3, 3]


def test_last_batch_is_numbered_as_in_keras():
    auto = length_of()
    run(auto, 0.001, 2)
    assert auto.last_batch(8) == 8  # 1 and 8 steps are done, counted from 0
    fixed = length_of(4)
    fixed.next()
    fixed.done(2)  # the epoch ended during the compiled call
    assert fixed.last_batch(2) == 3


def test_compiled_calls_last_longer_where_calls_themselves_do():
    for call, longest in ((0.002, 1), (0.02, 5), (0.2, 12)):
        function = Compiled()
        function.call_seconds = call
        assert run(length_of(function=function), 0.08, 4)[-1] == longest
