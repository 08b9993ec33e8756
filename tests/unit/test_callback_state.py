"""The parts of a snapshot: when it is due, whose state it has, which copies, what differs, what a signal requests."""

import datetime
import functools
import json
import re
import signal
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from backup_content import backup_content
from helpers import in_threads

from unisono import optimizers
from unisono.callbacks import BackupAndRestore
from unisono.callbacks.backup import callback_state, snapshot
from unisono.callbacks.backup.save_schedule import InterruptionHandlers, SaveSchedule, stop
from unisono.distribute.workers import agreement
from unisono.state import variable_state
from unisono.state.identity import described_values
from unisono.state.identity import table as fingerprint
from unisono.state.trained_model import FitState


@pytest.mark.parametrize(
    ("given", "unit", "amount"),
    [
        ("epoch", "epoch", 1),
        (100, "steps", 100),
        (30.0, "seconds", 30.0),
        ("30s", "seconds", 30.0),
        ("1.5 min", "seconds", 90.0),
        ("2 hours", "seconds", 7200.0),
        (datetime.timedelta(minutes=1), "seconds", 60.0),
        (False, "never", 1),
    ],
)
def test_save_freq_is_read(given, unit, amount):
    assert SaveSchedule.parse(given) == SaveSchedule(unit, amount)


def test_steps_are_counted_over_all_epochs_and_long_compiled_calls():
    every = SaveSchedule("steps", 10)
    assert [every.steps_until_call(n) for n in (0, 1, 9, 10, 19)] == [10, 9, 1, 10, 1]
    assert [every.due(n, 0, 0.0) for n in (9, 10, 25)] == [False, True, True]
    assert not every.due(29, 25, 0.0) and every.due(30, 25, 0.0)
    assert SaveSchedule("seconds", 5.0).steps_until_call(3) is None
    assert [SaveSchedule("seconds", 5.0).due(1, 0, t) for t in (4.9, 5.0)] == [False, True]
    assert not SaveSchedule("epoch").due(100, 0, 100.0) and not SaveSchedule("never").due(100, 0, 100.0)


def test_names_of_keras_are_taken():
    backup = BackupAndRestore(
        backup_dir="b", save_freq="epoch", double_checkpoint=True, delete_checkpoint=False
    )
    assert (str(backup.directory), backup._store._keep, backup.delete_when_done) == ("b", 2, False)
    assert BackupAndRestore("b", "epoch", True)._store._keep == 2
    assert BackupAndRestore("b", double_checkpoint=False)._store._keep == 1


class Counting(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.counts = {"a": [1]}

    def get_state(self):
        return self.counts

    def set_state(self, state):
        self.counts = state


def test_states_go_to_the_callback_of_the_same_class_and_order():
    def given():
        return [Counting(), keras.callbacks.EarlyStopping(), Counting()]

    before, after = given(), [keras.callbacks.TerminateOnNaN(), *given()]
    before[2].counts = {"a": [7, 8]}
    before[1].wait, before[1].best = 3, 0.25
    before[1].best_weights = [np.ones(3)]
    after[2].set_model(types.SimpleNamespace(weights=before[1].best_weights))
    saved = callback_state.capture(before)
    before[2].counts["a"].append(9)  # the captured state does not change
    assert callback_state.restore(after, saved) == []
    assert after[3].counts == {"a": [7, 8]} and after[1].counts == {"a": [1]}
    assert (after[2].wait, after[2].best, after[2].best_weights[0].tolist()) == (3, 0.25, [1, 1, 1])
    one = Counting()
    assert callback_state.restore([one], saved) == ["Counting", "EarlyStopping(val_loss)", "Counting"]
    assert one.counts == {"a": [1]}, "ambiguous, so its state is not restored"


def stopping(monitor, best=None, mode="auto"):
    callback = keras.callbacks.EarlyStopping(monitor, mode=mode)
    callback.best = best
    return callback


def checkpoint(path, best=None):
    callback = keras.callbacks.ModelCheckpoint(f"{path.removesuffix('.keras')}.keras")
    callback.best = best
    return callback


@pytest.mark.parametrize(
    ("before", "after", "bests", "left_over"),
    [
        ([stopping("a", 1), stopping("b", 2)], [stopping("b"), stopping("a")], [2, 1], []),
        ([stopping("a", 1), stopping("b", 2)], [stopping("b")], [2], ["EarlyStopping(a)"]),
        ([stopping("a", 1)], [stopping("b")], [None], ["EarlyStopping(a)"]),
        ([stopping("a", 1)], [stopping("c"), stopping("a")], [None, 1], []),
        ([stopping("a", 1, "min")], [stopping("a", mode="max")], [None], ["EarlyStopping(a, min)"]),
        ([stopping("a", 1), stopping("a", 2)], [stopping("a"), stopping("a")], [1, 2], []),
        ([stopping("a", 1), stopping("a", 2)], [stopping("a")], [None], ["EarlyStopping(a)"] * 2),
        ([checkpoint("x/a.keras", 1), checkpoint("x/b.keras", 2)], [checkpoint("y/b.keras")], [2], ["*"]),
        ([checkpoint("x/a", 1), checkpoint("x/b", 2)], [checkpoint("y/b"), checkpoint("y/a")], [2, 1], []),
        ([checkpoint("x/a.keras", 1)], [checkpoint("y/new.keras")], [1], []),
    ],
)  # fmt: skip
def test_state_is_never_handed_to_another_callback_of_its_class(before, after, bests, left_over):
    saved = callback_state.capture(before)
    found = callback_state.restore(after, saved)
    assert [callback.best for callback in after] == bests
    assert len(found) == len(left_over) if "*" in left_over else found == left_over


def test_subclass_of_a_keras_callback_is_known():
    class Mine(keras.callbacks.ReduceLROnPlateau):
        pass

    before, after = Mine(), Mine()
    before.wait, before.cooldown_counter, before.best = 2, 1, 0.5
    callback_state.restore([after], callback_state.capture([before]))
    assert (after.wait, after.cooldown_counter, after.best) == (2, 1, 0.5)


def variable(aggregation, synchronization="auto"):
    return keras.Variable(np.zeros(2, "float32"), aggregation=aggregation, synchronization=synchronization)


THREE_COPIES = {"copies": [np.array(v, "float32") for v in ([1, 2], [2, 2], [3, 4])]}


@pytest.mark.parametrize(
    ("saved", "kind", "copies", "expected"),
    [
        (THREE_COPIES, ("sum", "on_read"), 2, [[6.0, 8.0], [0.0, 0.0]]),
        (THREE_COPIES, ("sum", "on_read"), 1, [[6.0, 8.0]]),
        (THREE_COPIES, ("sum", "on_read"), 3, [[1.0, 2.0], [2.0, 2.0], [3.0, 4.0]]),
        (THREE_COPIES, ("mean", "auto"), 2, [[2.0, 8 / 3], [2.0, 8 / 3]]),
        (THREE_COPIES, ("none", "auto"), 2, [[1.0, 2.0], [1.0, 2.0]]),
        (np.array([3.0, 4.0], "float32"), ("sum", "on_read"), 3, [[3, 4], [0, 0], [0, 0]]),
    ],
)
def test_saved_copies_become_as_many_as_there_are_replicas(saved, kind, copies, expected):
    target = variable(*kind)
    result = variable_state.spread(saved, copies, target._value, target)
    np.testing.assert_array_equal(np.array(result), np.array(expected, "float32"))


def test_host_buffers_copy_and_are_used_again():
    buffers, array = {}, np.arange(4.0)
    first = variable_state.copy_into_buffer(buffers, "a", array)
    array[:] = 0
    assert first.tolist() == [0, 1, 2, 3]
    assert variable_state.copy_into_buffer(buffers, "a", array) is first and first.tolist() == [0, 0, 0, 0]
    assert variable_state.copy_into_buffer(buffers, "a", np.ones(3)) is not first


def prints(**changes):
    return {**backup_content()["fingerprint"], **changes}


def test_names_counted_up_by_keras_and_unknown_sizes_are_no_difference():
    other = prints(data={"rows": None, "batch_rows": 4, "steps_per_epoch": 3, "layout": ["float32(2,)"]})
    other["variables"] = {**other["variables"], "model": [["dense_3/kernel", [2, 3], "float32"]]}
    assert fingerprint.differences(prints(), other) == []
    names = "sequential_dense_kernel", "sequential_1_dense_12_kernel"
    one, two = (
        prints()["variables"] | {"optimizer": [[f"adam/{name}_momentum", [2, 3], "float32"]]}
        for name in names
    )
    assert fingerprint.differences(prints(variables=one), prints(variables=two)) == []


def test_more_and_fewer_variables_are_listed():
    known = prints()["variables"]
    more = known | {"model": [*known["model"], ["dense/bias", [3], "float32"]]}
    assert fingerprint.differences(prints(), prints(variables=more)) == [
        "1 model variables in the backup, 2 now",
        "model variable dense/bias float32[3] only now",
    ]


def test_long_lists_are_cut():
    known = prints()["variables"]
    first, second = (
        known | {"model": [[f"{name}{i}/k", [1], "float32"] for i in range(30)]} for name in "de"
    )
    found = fingerprint.differences(prints(variables=first), prints(variables=second))
    assert len(found) == 13 and found[-1] == "and 18 more"


def identity(model=None, data=None, **identity_changes):
    found = {**prints()["identity"], **identity_changes}
    if model is not None:
        found["settings"] = json.loads(json.dumps(described_values.settings_of(model)))
    return {**prints(), "identity": {**found, "data": data or found["data"]}}


def scaled(values):
    return values * 2


def shifted(values):
    return values + 2


def a_model(activation="relu", wiring=(0, 1), loss="mse", rate=0.1, function=scaled, dtype=None, **optimizer):
    inputs = [keras.Input((2,)), keras.Input((2,))]
    hidden = [
        keras.layers.Dense(2, activation=activation, dtype=dtype)(inputs[0]),
        keras.layers.Dense(2)(inputs[1]),
    ]
    outputs = keras.layers.Subtract()([hidden[i] for i in wiring])
    model = keras.Model(inputs, keras.layers.Lambda(function, output_shape=(2,))(outputs))
    model.compile(keras.optimizers.Adam(rate, **optimizer), loss)
    return model


def test_same_training_made_again_is_no_difference():
    """Automatic layer numbers, recreated functions, and another learning rate, which is state."""
    first = identity(a_model(function=lambda x: x * 2))
    assert fingerprint.differences(first, identity(a_model(rate=0.2, function=lambda x: x * 2))) == []
    first = identity(a_model(activation=lambda x: x * 2))
    assert fingerprint.differences(first, identity(a_model(activation=lambda x: x * 2))) == []


def test_settings_that_differ_are_named():
    for changes, message in [
        ({"activation": "tanh"}, "model dense activation: relu in the backup, tanh now"),
        ({"wiring": (1, 0)}, "model dense activation: relu in the backup, linear now"),
        ({"wiring": (1, 1)}, "model"),
        ({"loss": "mae"}, "loss: mse in the backup, mae now"),
        ({"loss": keras.losses.MeanSquaredError()}, "loss: mse in the backup, MeanSquaredError now"),
        ({"beta_1": 0.5}, "optimizer beta_1: 0.9 in the backup, 0.5 now"),
        ({"function": shifted}, "model lambda function"),
        ({"function": lambda x: x * 3}, "model lambda function"),
        ({"dtype": "bfloat16"}, "model dense dtype name: float32 in the backup, bfloat16 now"),
        (
            {"rate": keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)},
            "optimizer learning_rate: None in the backup, ExponentialDecay now",
        ),
    ]:
        found = fingerprint.differences(identity(a_model()), identity(a_model(**changes)))
        assert len(found) >= 1 and re.match(message, found[0]), (changes, found)


def test_loss_of_the_user_is_known_by_what_it_computes():
    def loss_of(sign):
        if sign > 0:
            return lambda y, p: p - y
        return lambda y, p: y - p

    def found(first, second, **changes):
        now = identity(a_model(loss=second), **changes)
        return fingerprint.differences(identity(a_model(loss=first)), now)

    assert found(loss_of(1), loss_of(1)) == []
    assert len(found(loss_of(1), loss_of(-1))) == 1

    def power(exponent, factor=1.0):
        return lambda y, p, offset=factor: offset * (p - y) ** exponent

    assert found(power(2), power(2)) == []
    assert len(found(power(2), power(4))) == len(found(power(2), power(2, 3.0))) == 1
    # Two lambdas on one line, and one within the other.
    assert len(found(*(lambda y, p: p if y else y, lambda y, p: y if y else p))) == 1
    outer = lambda y, p: lambda y, p: p - y  # noqa: E731
    assert len(found(outer, outer(0, 0))) == 1
    # Another version of Python parses the same function to a different tree.
    assert found(loss_of(1), loss_of(-1), versions={"keras": "3", "python": "3.12"}) == []


def test_functions_are_known_by_their_module_where_there_is_no_source():
    def loss(module, body):
        names = {"__name__": module}
        exec(f"def loss(y, p):\n    return {body}", names)
        return names["loss"]

    def found(first, second):
        return fingerprint.differences(
            identity(a_model(loss=loss(*first))), identity(a_model(loss=loss(*second)))
        )

    assert found(("a", "p - y"), ("a", "y - p")) == []
    assert len(found(("a", "p - y"), ("b", "p - y"))) == 1


def test_checksums_of_compiled_code_are_not_compared():
    """Those of earlier backups. Names are."""
    now = identity(a_model(loss=scaled, function=lambda x: x * 2))
    old = json.loads(re.sub("code [0-9a-f]*( values [0-9a-f]*)", r"code 0123\1", json.dumps(now)))
    assert "code 0123" in str(old) and fingerprint.differences(old, now)
    for each in old, now:
        each["identity"]["versions"] = {"keras": "3"}
        each["identity"]["data"] = {"pipeline": str(len(str(each)))}
    now["identity"]["versions"]["functions"] = "by source"
    del old["identity"]["settings"]["code"]
    assert fingerprint.differences(old, now) == []
    old["identity"]["settings"]["loss"] = "shifted code 0123"
    assert fingerprint.differences(old, now) == ["loss: shifted in the backup, scaled now"]


class Holding(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function


class Difference(keras.losses.Loss):
    def __init__(self, function=None):
        super().__init__()
        self.function = function

    def call(self, y, p):
        return p - y


def another_difference():
    class Difference(keras.losses.Loss):
        def call(self, y, p):
            return y - p

    return Difference()


@pytest.mark.long
def test_functions_and_classes_within_others_are_known_by_what_they_compute():
    one, two = lambda x: x, lambda x: 2 * x
    distributed = lambda f: keras.layers.TimeDistributed(keras.layers.Lambda(f, output_shape=(2,)))  # noqa: E731
    for inner in (
        lambda f: keras.layers.Dense(2, activation=f),
        lambda f: keras.Sequential([keras.layers.Dense(2, bias_regularizer=f)]),
        distributed,
        Holding,
    ):

        def settings(function, inner=inner):
            layers = [keras.layers.Identity() for _ in range(70)]
            return described_values.settings_of(keras.Sequential([*layers, inner(function)]))

        assert settings(one) == settings(one) != settings(two)
    adams = [optimizers.Adam(gradient_transformers=[f]) for f in (one, one, two)]
    first, again, other = map(described_values.plain, adams)
    assert first == again != other
    losses = [Difference(), Difference(one), Difference(two), another_difference()]
    assert len({json.dumps(described_values.plain(loss)) for loss in losses}) == 4
    assert described_values.plain(Difference(one)) == described_values.plain(Difference(one))


def test_layers_of_a_model_without_settings_are_analysed():
    class Mine(keras.Model):
        def __init__(self, units):
            super().__init__()
            self.blocks = [keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(units / 10)]

        def get_config(self):
            raise NotImplementedError

    found = fingerprint.differences(identity(Mine(2)), identity(Mine(3)))
    assert any("dropout rate: 0.2 in the backup, 0.3 now" in item for item in found)


def test_data_and_seeds_that_differ_are_named_and_the_unknown_is_not():
    def found(**changes):
        return fingerprint.differences(identity(), identity(**changes))

    assert found(data={"content": "2"}) == ["data content: 1 in the backup, 2 now"]
    assert found(data={"content": None, "pipeline": "x"}) == []
    assert found(seeds={"keras.utils.set_random_seed": 3}) == [
        "seed of keras.utils.set_random_seed: None in the backup, 3 now"
    ]


def test_first_signal_asks_and_the_second_acts():
    before = signal.getsignal(signal.SIGINT)
    handlers, fit_state = InterruptionHandlers(), FitState()
    handlers.install(fit_state)
    signal.raise_signal(signal.SIGINT)
    assert fit_state.asked_to_exit == fit_state.save_and_exit == "SIGINT"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_sigusr1_saves_and_exits_unless_the_program_has_a_handler_of_its_own():
    handlers, fit_state = InterruptionHandlers(), FitState()
    handlers.install(fit_state)
    signal.raise_signal(signal.SIGUSR1)
    assert fit_state.save_and_exit == "SIGUSR1"
    handlers.remove()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    told = []
    signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
    try:
        handlers.install(fit_state)
        signal.raise_signal(signal.SIGUSR1)
        handlers.remove()
        assert told == [signal.SIGUSR1] and fit_state.save_and_exit is None
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_with_several_workers_the_loop_decides_the_step():
    handlers, fit_state = InterruptionHandlers(), FitState(settles_exit=True)
    handlers.install(fit_state)
    signal.raise_signal(signal.SIGTERM)
    handlers.remove()
    assert (fit_state.asked_to_exit, fit_state.save_and_exit) == ("SIGTERM", None)


@pytest.mark.parametrize(
    ("reason", "error"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit), ("SIGUSR1", SystemExit)]
)
def test_stop_ends_as_documented(reason, error):
    with pytest.raises(error) as caught:
        stop(reason)
    assert getattr(caught.value, "code", None) == (143 if error is SystemExit else None)


class Cluster:
    """Threads as workers: the `_sum` of each waits for the others, like an all-reduce."""

    def __init__(self, workers):
        self.workers, self.me = workers, threading.local()
        self.barrier, self.slots, self.words = threading.Barrier(workers), [None] * workers, 0

    def sum(self, strategy, rows):
        self.slots[self.me.number] = rows
        self.barrier.wait()
        total = sum(self.slots)
        self.words += rows.size if self.me.number == 0 else 0
        self.barrier.wait()
        return total

    def run(self, function, monkeypatch):
        monkeypatch.setattr(agreement, "_sum", self.sum)
        for module in (agreement, snapshot):
            monkeypatch.setattr(module, "place_among_workers", lambda _: (self.me.number, self.workers))
            monkeypatch.setattr(module, "spans_workers", lambda _: True)
        results = [None] * self.workers

        def work(number):
            self.me.number = number
            results[number] = function(number)

        with in_threads(*(functools.partial(work, number) for number in range(self.workers))):
            pass
        return results


def test_bytes_are_sent_between_workers(monkeypatch):
    monkeypatch.setattr(agreement, "_PIECE_BYTES", 64)
    payloads = [b"", b"\0", bytes(range(256)) * 3 + b"x", b"\xff" * 64]
    for only_chief, expected in ((False, [payloads] * 4), (True, [payloads] + [[b""] * 4] * 3)):
        gather = lambda me, only=only_chief: agreement.gather_bytes(payloads[me], None, only)  # noqa: E731
        assert Cluster(4).run(gather, monkeypatch) == expected
    monkeypatch.undo()
    assert agreement.gather_bytes(b"alone", tf.distribute.get_strategy()) == [b"alone"]


@pytest.mark.parametrize(
    ("iterators", "sent"),
    [([1, 1, 1], 0), ([1, 2, 2], 1), ([1, 2, 3], 2), ([None, None, None], 0), ([1, None, 1], 0)],
)
def test_iterators_of_workers_are_sent_once_and_only_where_they_differ(monkeypatch, iterators, sent):
    size = 80_000
    cluster = Cluster(3)
    copies = {"metrics": [{"copies": [np.full(2, 1.0)]}], "model": [np.ones(3)]}

    def part(me):
        iterator = {} if iterators[me] is None else {"iterator": bytes([iterators[me]]) * size}
        return {"random": me, "source": {"step": me, **iterator}}

    def capture(me):
        return snapshot._from_all_workers(None, {k: list(v) for k, v in copies.items()}, part(me))

    variables, parts = cluster.run(capture, monkeypatch)[0]
    assert len(variables["metrics"][0]["copies"]) == 3
    assert sent * size <= 8 * cluster.words < sent * size * 2 + 20_000
    for me in range(3):
        cluster.me.number = me
        assert snapshot._own_part({"workers": parts}, None) == part(me)
