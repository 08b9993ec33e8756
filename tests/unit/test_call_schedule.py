"""After how many steps callbacks must be called, and how many steps a compiled call has."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from helpers import Clock

from unisono.callbacks.call_schedule import steps_until_call
from unisono.trainer.run.loops.compiled_calls import CallLength


def kind(name, *hooks, base=keras.callbacks.Callback, **attributes):
    """A class of callbacks with these hooks, which do nothing."""
    return type(name, (base,), {**dict.fromkeys(hooks, lambda self, *given: None), **attributes})


OnBatch = kind("OnBatch", "on_train_batch_end")
OnOldNamedBatch = kind("OnOldNamedBatch", "on_batch_begin")
OnEpoch = kind("OnEpoch", "on_epoch_end")
OnTestBatch = kind("OnTestBatch", "on_test_batch_end")
OwnAnswer = kind("OwnAnswer", base=OnBatch, steps_until_call=lambda self, step: 10 - step)
Early = kind("Early", "on_batch_end", base=keras.callbacks.EarlyStopping)
Reader = kind("Reader", base=OnBatch, only_reads_logs=True)
ReaderInThreads = kind("ReaderInThreads", base=Reader, async_safe=True)
TakesVectors = kind("TakesVectors", "on_train_steps_end")


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (OnBatch(), 1),
        (OnOldNamedBatch(), 1),
        (OnEpoch(), None),
        (OnTestBatch(), None),
        (OwnAnswer(), 6),
        (Early(), 1),
        (keras.callbacks.EarlyStopping(), None),
        (keras.callbacks.History(), None),
        (keras.callbacks.ProgbarLogger(), None),
        (keras.callbacks.TerminateOnNaN(), 1),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), None),
        (keras.callbacks.LambdaCallback(on_train_batch_begin=print), 1),
        (keras.callbacks.ModelCheckpoint("a.keras"), None),
        (keras.callbacks.ModelCheckpoint("a.keras", save_freq=5), 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_training_calls_hooks(callback, expected):
    assert steps_until_call(callback, 4) == expected


def test_model_checkpoint_is_woken_at_its_next_save():
    checkpoint = keras.callbacks.ModelCheckpoint("a.keras", save_freq=5)
    checkpoint._batches_seen_since_last_saving = 3
    assert steps_until_call(checkpoint, 3) == 2


@pytest.mark.parametrize(
    ("callback", "phase", "expected"),
    [
        (OnBatch(), "test", None),
        (OnTestBatch(), "test", 1),
        (OnTestBatch(), "predict", None),
        (OwnAnswer(), "test", None),
        (keras.callbacks.ProgbarLogger(), "test", None),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_other_phases_call_hooks(callback, phase, expected):
    assert steps_until_call(callback, 4, phase) == expected


@pytest.mark.parametrize(
    "callback, steps, alone",
    [
        (Reader(), None, 1),
        (ReaderInThreads(), 1, 1),
        (TakesVectors(), None, 1),
        (keras.callbacks.TerminateOnNaN(), None, 1),
        (kind("Own", base=keras.callbacks.TerminateOnNaN)(), 1, 1),
        (type("Both", (Reader, OwnAnswer), {})(), 7, 7),
    ],
)
def test_callbacks_that_only_read_are_called_each_step_and_end_no_compiled_call(callback, steps, alone):
    assert steps_until_call(callback, 3, records_logs=True) == steps
    assert steps_until_call(callback, 3) == alone


def test_only_a_class_declares_that_it_reads():
    callback = OnBatch()
    callback.only_reads_logs = True
    assert steps_until_call(callback, 0, records_logs=True) == 1


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
        length.note_call(steps)
        taken.append(steps)
    return taken


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


PACES = {  # steps, callbacks and target of the calls; the seconds a step takes, and the steps of the calls
    "grow eightfold until they last the target": ((None, (), 0.1), (0.001, [1, 8, 64, 100, 100, 100])),
    "shrink when steps become slow": ((None, (), 0.1), (0.001, [1, 8, 64, 100, 100]), (0.05, [100, 2])),
    "have one step if steps are slow": ((None, (), 0.1), (3.0, [1, 1, 1, 1])),
    "end where a callback calls": ((None, (At(None), At(7), At(5)), 1.0), (0.0001, [1, 4, 2, 3, 4, 1])),
    "have a fixed length whatever callbacks want": ((3, [At(1)], 0.1), (1.0, [3, 3, 3])),
}


@pytest.mark.parametrize("case", PACES)
def test_compiled_calls(case):
    (steps, callbacks, target), *paces = PACES[case]
    length = length_of(steps, callbacks, target=target)
    for seconds_a_step, expected in paces:
        assert run(length, seconds_a_step, len(expected)) == expected
    assert length.step == sum(sum(expected) for _, expected in paces)


def test_step_at_which_a_resumed_epoch_stands_is_respected():
    length = length_of(None, [At(5)], step=3)
    length._steps = 50
    assert length.next() == 2


def test_last_batch_is_numbered_as_in_keras():
    auto = length_of()
    run(auto, 0.001, 2)
    assert auto.last_batch(8) == 8  # 1 and 8 steps are done, counted from 0
    fixed = length_of(4)
    fixed.next()
    fixed.note_call(2)  # the epoch ended during the compiled call
    assert fixed.last_batch(2) == 3


def test_compiled_calls_last_longer_where_calls_themselves_do():
    for call, longest in ((0.0005, 1), (0.0041, 5), (0.2, 12)):
        function = Compiled()
        function.call_seconds = call
        assert run(length_of(function=function), 0.08, 4)[-1] == longest
