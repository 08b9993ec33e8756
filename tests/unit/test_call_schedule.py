"""When callbacks are called: each kind defines after how many steps its per-batch hooks must run."""

from __future__ import annotations

import keras
import pytest

from unisono.callbacks.call_schedule import steps_until_call


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


def test_hook_set_on_the_instance_is_seen():
    callback = keras.callbacks.Callback()
    callback.on_train_batch_end = lambda batch, logs=None: None
    assert steps_until_call(callback, 0) == 1


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


def test_names_of_version_0_2_still_count_with_a_warning():
    own = kind("Old", base=OnBatch, steps_to_wake=lambda self, step: 10 - step)()
    words = "`steps_to_wake` of Old is deprecated: rename it to `steps_until_call`"
    with pytest.warns(DeprecationWarning, match=words):
        assert steps_until_call(own, 4) == 6
    waiting = kind("Waiting", base=OnBatch, waits_for_executions=True)()
    with pytest.warns(DeprecationWarning, match="rename it to `waits_for_compiled_calls`"):
        assert steps_until_call(waiting, 4) is None
