"""A fit that is interrupted and called again in a new model ends with the bits of the one that was left alone."""

import errno
import functools
import os
import random
import shutil
import signal
import threading

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Stop, StopAt, as_in_new_process

import unisono
from unisono import callbacks
from unisono.callbacks.backup.files import container
from unisono.callbacks.backup.files import store as backup_store

ROWS, BATCH = 48, 16  # three steps; a partial last batch resumes in `tests/workers/test_kill_and_resume.py`


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    return x, (x @ rng.normal(size=(4, 3))).argmax(1)


def make_model(
    strategy=None, optimizer="adam", noise=0.2, seed=11, from_logits=True, eager=True, **of_the_hidden_layer
):
    """The same model as a script would create it again."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    with helpers.scope(strategy):
        hidden = keras.layers.Dense(**{"units": 6, "activation": "relu", **of_the_hidden_layer})
        model = unisono.Sequential([hidden, keras.layers.Dropout(noise), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
        optimizer = keras.optimizers.get(optimizer)
        model.compile(optimizer, loss, metrics=["accuracy"], run_eagerly=eager)
    return model


def fit(model, *extra, x=None, epochs=3, validation=True, **arguments):
    """Trains, and returns everything that must be equal."""
    inputs = {"x": data()[0], "y": data()[1], "batch_size": BATCH} if x is None else {"x": x}
    if validation:
        inputs["validation_data"] = data()
        inputs["validation_batch_size"] = 24
    history = model.fit(**inputs, epochs=epochs, verbose=0, callbacks=list(extra), **arguments)
    return {"bits": bits(model), "history": history.history, "epochs": history.epoch}


def bits(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(tf.convert_to_tensor(v.value)).tobytes() for v in variables]


def interrupted(directory, nth, *extra, model=None, **arguments):
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(Stop):
        backup = callbacks.BackupAndRestore(directory, save_freq=1)
        fit(model or make_model(), *extra, backup, StopAt(nth), **arguments)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers, "restored"


def resumed(directory, *extra, model=None, save_freq=1, backup=None, **arguments):
    return fit(
        model or make_model(),
        *extra,
        callbacks.BackupAndRestore(directory, save_freq=save_freq, **(backup or {})),
        **arguments,
    )


@pytest.fixture(scope="module")
def left_alone():
    return fit(make_model())


@pytest.fixture(scope="module")
def of_step_four(tmp_path_factory):
    """Backups of a training run that was interrupted in its fifth step, the second of the second epoch."""
    folder = tmp_path_factory.mktemp("interrupted")
    interrupted(folder, 5)
    return folder


@pytest.fixture
def backups(of_step_four, tmp_path):
    """A copy of these backups."""
    return shutil.copytree(of_step_four, tmp_path / "backups")


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.long
def test_resumed_fit_ends_with_the_same_bits(eager, tmp_path, capsys):
    expected = fit(make_model(eager=eager))
    interrupted(tmp_path, 5, model=make_model(eager=eager))
    assert resumed(tmp_path, model=make_model(eager=eager)) == expected
    assert "at epoch 2, step 1; position in the data: by index." in capsys.readouterr().out


@pytest.mark.long
def test_last_step_of_an_epoch_keeps_its_logs(tmp_path, left_alone):
    """A backup after the last step: no training is left in that epoch, and its logs are kept."""

    class StopInValidation(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            raise Stop

    with pytest.raises(Stop):
        fit(make_model(), callbacks.BackupAndRestore(tmp_path, save_freq=1), StopInValidation())
    info = callbacks.latest_backup(tmp_path)
    assert (info.epoch, info.step, info.total_steps) == (0, 3, 3)
    assert resumed(tmp_path) == left_alone


def test_generator_is_warned_about(tmp_path):
    def endless():
        while True:
            x, y = data()
            yield x[:BATCH], y[:BATCH]

    with pytest.warns(UserWarning, match="cannot be rewound"):
        backup = callbacks.BackupAndRestore(tmp_path)
        fit(make_model(), backup, x=endless(), steps_per_epoch=2, epochs=1, validation=False, shuffle=False)


class Lazy(keras.Model):
    """Built at the first batch, with state in a plain `tf.Variable` and a `tf.random.Generator`."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.noise = tf.random.Generator.from_seed(5)
        self.held = {"inner": [Holder()]}

    def call(self, x, training=False):
        if not training:
            return self.dense(x)
        held = self.held["inner"][0]
        held.calls.assign_add(0.01)
        drawn = keras.random.uniform([], 0.9, 1.1, seed=held.seeds) + keras.random.uniform([], seed=SEEDS)
        return self.dense(x) * held.generator.uniform([], 0.9, 1.1) * drawn + held.calls


class Holder:
    """A custom object in a dict of a layer."""

    def __init__(self):
        self.generator = tf.random.Generator.from_seed(6)
        self.seeds, self.calls = keras.random.SeedGenerator(7), keras.Variable(0.0, trainable=False)


SEEDS = keras.random.SeedGenerator(8)  # a method of a model refers to it


def test_model_built_at_the_first_batch_resumes_in_a_pydataset_by_index(tmp_path, capsys):
    def model():
        keras.backend.clear_session()
        keras.utils.set_random_seed(2)
        SEEDS.state.assign([8, 0])
        model = unisono.adopt(Lazy())
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    x, y = data()
    parts = [slice(index * BATCH, (index + 1) * BATCH) for index in range(3)]
    batches = helpers.Batches([(x[rows], y[rows]) for rows in parts])
    expected = fit(model(), x=batches)
    interrupted(tmp_path, 5, model=model(), x=batches)
    assert resumed(tmp_path, model=model(), x=batches) == expected
    assert "by index" in capsys.readouterr().out


@pytest.mark.long
def test_other_numbers_of_replicas_go_on(tmp_path):
    """1, 3, then 2. Without dropout this matches a single device: the backup contains the running sums of the epoch."""
    expected = fit(make_model(noise=0.0))
    for replicas, nth in (("none", 3), ("mirrored3", 3)):
        interrupted(tmp_path, nth, model=make_model(noise=0.0, strategy=helpers.strategy(replicas)))
    result = resumed(tmp_path, model=make_model(noise=0.0, strategy=helpers.strategy("mirrored2")))
    for name, values in expected["history"].items():
        np.testing.assert_allclose(result["history"][name], values, 1e-4, err_msg=name)


KERNELS = r"dense/kernel float32\[4, 6\] in the backup, sequential/dense/kernel float32\[4, 7\] now"
ADAM = {"class_name": "Adam", "config": {"beta_1": 0.5}}
DIFFERENT = [
    ({"units": 7}, {}, KERNELS),
    ({"optimizer": "sgd"}, {}, r"optimizer: Adam in the backup, SGD now"),
    ({"optimizer": ADAM}, {}, r"optimizer beta_1: 0.9 in the backup, 0.5 now"),
    ({}, {"rows": 33}, r"data samples: 48 in the backup, 33 now"),
    ({}, {"batch_size": 11}, r"data batch size: 16 in the backup, 11 now"),
    ({}, {"add": 1e-3}, r"data content: [0-9a-f]{16} in the backup, [0-9a-f]{16} now"),
    ({}, {"shuffle": False}, r"data shuffle: True in the backup, False now"),
    ({"seed": 12}, {}, r"seed of keras.utils.set_random_seed: 11 in the backup, 12 now"),
    ({"activation": "tanh"}, {}, r"model dense activation: relu in the backup, tanh now"),
    ({"noise": 0.3}, {}, r"model dropout rate: 0.2 in the backup, 0.3 now"),
    ({"from_logits": False}, {}, r"loss from_logits: True in the backup, False now"),
]


@pytest.mark.long
def test_another_training_is_rejected_with_what_differs(backups):
    for settings, inputs, message in DIFFERENT:
        model = make_model(**settings)
        model.build((None, 4))
        before = bits(model)[:4]
        x, y = (part[: inputs.get("rows", ROWS)] for part in data())
        x[-1, -1] += inputs.get("add", 0.0)
        given = {"batch_size": inputs.get("batch_size", BATCH), "shuffle": inputs.get("shuffle", True)}
        with pytest.raises(callbacks.BackupMismatchError, match=message) as caught:
            backup = callbacks.BackupAndRestore(backups)
            model.fit(x, y, **given, validation_data=data(), verbose=0, callbacks=[backup])
        assert "backup-000004.unisono belongs to another training" in str(caught.value)
        assert bits(model)[:4] == before
    assert callbacks.latest_backup(backups).status == "good"


def test_a_declared_identity_tells_runs_apart(tmp_path):
    """What Unisono cannot see, such as a constant that a NumPy function reads from its module, is declared."""
    factor = [1.0]
    double = lambda x, y: (tf.numpy_function(lambda v: v * np.float32(factor[0]), [x], tf.float32), y)  # noqa: E731

    def fit(change, identity, stop):
        factor[0] = change
        model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        shaped = lambda x, y: (tf.ensure_shape(x, [None, 4]), y)  # noqa: E731
        batches = (
            tf.data.Dataset.from_tensors((np.ones((4, 4), "float32"), np.ones((4, 1))))
            .map(double)
            .map(shaped)
        )
        backup = callbacks.BackupAndRestore(tmp_path, identity=identity)
        ends = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: 1 / (epoch - stop))
        with pytest.raises(ZeroDivisionError):
            model.fit(batches, epochs=9, verbose=0, callbacks=[backup, ends])
        return backup.initial_epoch

    fit(1.0, "data 1", 1)
    assert fit(2.0, "data 1", 2) == 1, "silent: the function has the same code"
    with pytest.raises(callbacks.BackupMismatchError, match="identity: data 1 in the backup, data 2 now"):
        fit(2.0, "data 2", 3)
    with pytest.raises(callbacks.BackupMismatchError, match="identity: data 1 in the backup, None now"):
        fit(2.0, None, 3)


def test_backup_of_another_run_with_equal_settings_and_data_is_rejected(backups, tmp_path):
    interrupted(tmp_path / "other", 3)
    mixed = shutil.copy(callbacks.latest_backup(tmp_path / "other"), backups / "backup-000009.unisono")
    model = make_model()
    model.build((None, 4))
    before = bits(model)[:4]
    with pytest.raises(callbacks.BackupMismatchError, match="belong to different runs") as caught:
        resumed(backups, model=model)
    assert str(mixed) in str(caught.value) and bits(model)[:4] == before
    mixed.unlink()
    assert resumed(backups)


@pytest.mark.long
def test_more_epochs_are_the_same_training(tmp_path):
    """Also when a callback changes the learning rate."""
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    expected = fit(make_model(), halve)
    interrupted(tmp_path, 5, halve, epochs=2)
    assert resumed(tmp_path, halve, epochs=3) == expected


@pytest.mark.long
def test_damaged_newest_is_named_and_the_one_before_it_gives_the_same_bits(backups, left_alone):
    newest = backup_store.backup_paths(backups)[0]
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged"):
        assert resumed(backups) == left_alone


def test_run_whose_backups_are_all_damaged_does_not_begin_again_in_silence(backups, left_alone):
    damaged = backup_store.backup_paths(backups)
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(callbacks.DamagedFileError, match=r"No backup in .* can be read") as caught:
        resumed(backups)
    assert all(f"\n  - {path} is damaged: it has" in str(caught.value) for path in damaged)
    assert backup_store.backup_paths(backups) == damaged, "it can be repaired"


def test_asked_for_fresh_start_leaves_the_damaged_files(backups, left_alone):
    """Also if it is killed and resumed."""
    damaged = backup_store.backup_paths(backups)
    for path in damaged:
        path.write_bytes(b"")
    restart = {"on_damaged": "restart", "keep": 1, "save_freq": 1}
    with pytest.warns(UserWarning) as caught, pytest.raises(Stop):
        fit(make_model(), callbacks.BackupAndRestore(backups, **restart), StopAt(4))
    assert "training starts from the beginning" in str(caught[-1].message)
    assert len(backup_store.backup_paths(backups)) == len(damaged) + 1
    assert fit(make_model(), callbacks.BackupAndRestore(backups, **restart)) == left_alone
    assert backup_store.backup_paths(backups) == damaged


def test_what_a_killed_save_leaves_is_no_backup(tmp_path, left_alone):
    """A temporary file, and a part of another worker: the run begins again."""
    (tmp_path / ".backup-000001.00000000-1-1.tmp.unisono").write_bytes(b"half")
    (tmp_path / "backup-000001.part-1.unisono").write_bytes(b"half")
    assert resumed(tmp_path) == left_alone


def test_half_of_an_owner_is_named_and_not_taken_over(backups):
    (backups / "owner.json").write_bytes(b'{"process": "00000000-1')
    with pytest.raises(callbacks.SaveError, match=r"would overwrite .*owner\.json"):
        resumed(backups)
    assert len(backup_store.backup_paths(backups)) == 2


@pytest.mark.long
def test_snapshot_is_not_torn_by_steps_that_run_while_it_is_written(tmp_path, monkeypatch):
    """The backup written in the background, during later steps, equals the backup of a run that waits for the write."""
    write, go_on = backup_store.BackupStore.write, threading.Event()

    def late_write(self, *arguments):
        go_on.wait()
        return write(self, *arguments)

    class Release(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                go_on.set()

    contents = []  # in a graph, which updates the variables in place
    for background in (False, True):
        folder = tmp_path / str(background)
        if background:
            monkeypatch.setattr(backup_store.BackupStore, "write", late_write)
        backup = callbacks.BackupAndRestore(
            folder, save_freq=1000, background=background, delete_when_done=False
        )
        # One save, after the first step; it is written after two more steps.
        monkeypatch.setattr(type(backup.schedule), "due", lambda self, steps, *_: steps == 1)
        with pytest.raises(Stop):
            fit(make_model(eager=False), Release(), backup, StopAt(3))
        contents.append(container.read(backup_store.backup_paths(folder)[0])[1])
    assert contents[0]["calendar"]["step"] == contents[1]["calendar"]["step"] == 1
    del contents[0]["callbacks"], contents[1]["callbacks"]
    np.testing.assert_equal(contents[1], contents[0])


def test_error_of_a_background_write_is_raised_at_a_later_step(backups, monkeypatch):
    before = sorted(os.listdir(backups))

    def full(self, *arguments):
        raise callbacks.SaveError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(backup_store.BackupStore, "write", full)
    with pytest.raises(callbacks.SaveError, match="No space left"):
        resumed(backups)
    assert sorted(os.listdir(backups)) == before
    monkeypatch.undo()
    assert callbacks.latest_backup(backups).total_steps == 4


def test_vanished_directory_is_an_error(tmp_path):
    class Vanish(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            os.rename(tmp_path / "b", tmp_path / "elsewhere")

    with pytest.raises(callbacks.SaveError, match="the directory is gone"):
        fit(make_model(), Vanish(), callbacks.BackupAndRestore(tmp_path / "b", save_freq=3, background=False))
    assert callbacks.latest_backup(tmp_path / "elsewhere").status == "good"


def test_finished_training_is_not_repeated(tmp_path, monkeypatch):
    backup = {"delete_when_done": False}
    stopping = {"epochs": 9}
    first = resumed(tmp_path, keras.callbacks.EarlyStopping("loss", min_delta=9.0), backup=backup, **stopping)
    assert len(first["epochs"]) == 2
    as_in_new_process(monkeypatch)
    again = resumed(tmp_path, keras.callbacks.EarlyStopping("loss", min_delta=9.0), backup=backup, **stopping)
    assert again == first


def test_second_fit_of_a_script_is_not_taken_for_the_first(tmp_path, monkeypatch):
    """Both use one directory: the second starts where the first ended, and a new process resumes each from its backup."""

    def script(nth=None):
        model = make_model()
        first = resumed(tmp_path, model=model, backup={"delete_when_done": False}, epochs=2)
        if nth is not None:
            interrupted(tmp_path, nth, model=model, epochs=2)
            return None
        return first, resumed(tmp_path, model=model, epochs=2)

    def alone():
        model = make_model()
        return fit(model, epochs=2), fit(model, epochs=2)

    script(nth=5)
    assert {path.name[:11] for path in backup_store.backup_paths(tmp_path)} == {"backup-fit2", "backup-0000"}
    as_in_new_process(monkeypatch)
    assert script() == alone()


def test_directory_of_a_running_fit_is_rejected(tmp_path):
    used = f"{tmp_path} is in use by another fit of this process"

    class Another(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            with pytest.raises(callbacks.SaveError, match=used):
                fit(make_model(), callbacks.BackupAndRestore(tmp_path), epochs=1, validation=False)
            raise Stop

    two = callbacks.BackupAndRestore(tmp_path), callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(callbacks.SaveError, match=used):
        fit(make_model(), *two)
    with pytest.raises(Stop):
        fit(make_model(), callbacks.BackupAndRestore(tmp_path), Another(), validation=False)
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_backups_are_kept_and_deleted_as_asked(tmp_path):
    class Count(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.seen = sorted(os.listdir(tmp_path / "b"))

    count = Count()
    backup = callbacks.BackupAndRestore(tmp_path / "b", keep=2, background=False)
    fit(make_model(), count, backup, epochs=5, validation=False)
    assert backup.saves == 5 and backup.stall_seconds > 0
    assert count.seen == ["backup-000003.unisono", "backup-000004.unisono", "owner.json"]
    assert not (tmp_path / "b").exists()


@pytest.mark.long
def test_seconds_are_checked_whenever_a_compiled_call_ends(tmp_path):
    now = iter(range(0, 10**6, 4))
    backup = callbacks.BackupAndRestore(tmp_path, save_freq="10s", background=False, delete_when_done=False)
    backup._clock = lambda: next(now)
    fit(make_model(eager=False), StopAt(10**6), backup, validation=False)
    # Nine steps and three ends of an epoch, 4 s at each check and three times that at each save.
    assert 2 <= backup.saves <= 6


def test_fit_in_another_thread_works_without_signals(backups, left_alone):
    results = []
    thread = threading.Thread(target=lambda: results.append(resumed(backups)))
    thread.start()
    thread.join()
    assert results == [left_alone]


class Draws(keras.callbacks.Callback):
    """Draws from the generators of Python, NumPy, Keras and TensorFlow, and has a state with an array."""

    def __init__(self):
        super().__init__()
        self.seen, self.best = [], np.zeros(2)

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(("begin", epoch))

    def on_train_batch_end(self, batch, logs=None):
        of_tensorflow = tf.random.get_global_generator().uniform([]), tf.random.uniform([])
        drawn = map(float, [keras.random.uniform([]), *of_tensorflow])
        self.seen.append((batch, logs["loss"], random.random(), np.random.rand(), *drawn))
        self.best += batch

    def get_state(self):
        return {"seen": self.seen, "best": self.best}

    def set_state(self, state):
        self.seen, self.best = list(state["seen"]), np.array(state["best"])


class Board(keras.callbacks.TensorBoard):
    """Stores how many batches it has counted."""

    def on_train_end(self, logs=None):
        self.counted = self._global_train_batch
        super().on_train_end(logs)


def test_callbacks_that_write_or_remember_go_on(tmp_path):
    """CSV rows are neither lost nor duplicated; boards, callback state and random generators continue exactly."""

    class StopAfterRow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise Stop

    def given(folder):
        folder.mkdir(exist_ok=True)
        if not (folder / "appended").exists():
            (folder / "appended").write_text("epoch,accuracy,learning_rate,loss\r\n77,0,0,0\r\n")
        return [
            Draws(),
            Board(folder / "board", update_freq=1),
            keras.callbacks.CSVLogger(str(folder / "log")),
            keras.callbacks.CSVLogger(str(folder / "appended"), append=True),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        ]

    alone, first, second = given(tmp_path / "alone"), given(tmp_path / "killed"), given(tmp_path / "killed")

    def seeded():
        tf.random.set_global_generator(tf.random.Generator.from_seed(4))
        return make_model()

    expected = fit(seeded(), *alone)
    with pytest.raises(Stop):
        # The CSV rows of epoch 1 are written, without a backup after them: they must not be duplicated.
        fit(seeded(), *first, callbacks.BackupAndRestore(tmp_path / "b", save_freq=5), StopAfterRow())
    for callback in first[1:4]:  # after an error in `fit`, Keras leaves their files open
        callback.on_train_end()
    assert resumed(tmp_path / "b", *second, model=seeded()) == expected
    assert second[0].seen == alone[0].seen and len(alone[0].seen) == 9 + 3
    np.testing.assert_array_equal(second[0].best, alone[0].best)
    assert second[1].counted == alone[1].counted == 9
    for name in ("log", "appended"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_plain_keras_model_gets_advice(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match=r"unisono\.adopt"):
        backup = callbacks.BackupAndRestore(tmp_path)
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[backup])


class CustomStep(helpers.GradientsOfItsOwn, unisono.Sequential):
    """A step as in Keras' guides; `compile` gets an optimizer and no loss."""

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(self(x, training=True) - tf.cast(y[:, None], tf.float32)))


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.long
def test_optimizer_of_a_custom_step_is_there_before_it_is_restored(replicas, tmp_path):
    def train(*extra):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        with helpers.scope(None if replicas is None else helpers.mirrored(replicas)):
            model = CustomStep([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Nadam(0.1), run_eagerly=True)
        model.fit(*data(), batch_size=BATCH, epochs=2, verbose=0, callbacks=[*extra])
        return bits(model)

    alone = train(callbacks.BackupAndRestore(tmp_path / "alone", save_freq=1))
    assert helpers.resumed(train, tmp_path / "stopped", 4) == alone


class LearnsAlone(keras.layers.Layer):
    """A layer with its own optimizer, as in layers that learn without a backward pass through the model."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(3, "tanh")
        self.optimizer = keras.optimizers.Adam(0.05)

    def call(self, x):
        return self.inner(x)

    def learn(self, x):
        loss_of = lambda: tf.reduce_mean(tf.square(tf.reduce_mean(tf.square(self(x)), 1) - 0.5))  # noqa: E731
        helpers.descend(loss_of, self.optimizer, self.inner.trainable_variables)


class ManyOptimizers(unisono.Model):
    """One optimizer in an attribute, two in a list, one in a layer, one in a nested model; none given to `compile`."""

    def __init__(self):
        super().__init__()
        self.alone = LearnsAlone()
        self.parts = [keras.layers.Dense(2), keras.layers.Dense(2)]
        self.within = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        self.within.compile(keras.optimizers.Adam(0.03), "mse")
        self.head = keras.layers.Dense(1)
        self.head_optimizer = keras.optimizers.Nadam(0.05)
        self.optimizers = [
            keras.optimizers.RMSprop(0.01, momentum=0.9),
            keras.optimizers.Adam(0.02, clipnorm=0.1),
        ]

    def call(self, x):
        return self.head(tf.concat([self.alone(x), self.within(x), *(part(x) for part in self.parts)], 1))

    def train_step(self, data):
        x, y = data
        self.alone.learn(x)
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - tf.cast(y[:, None], tf.float32)))
        learners = [(self.head_optimizer, self.head), (self.within.optimizer, self.within)]
        for optimizer, part in [*learners, *zip(self.optimizers, self.parts)]:
            weights = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}


@pytest.mark.long
def test_every_optimizer_that_a_model_holds_is_resumed_and_is_one_of_ours(tmp_path):
    def train(replicas, *extra):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        with helpers.scope(None if replicas == 1 else helpers.mirrored(replicas)):
            model = ManyOptimizers()
            model.compile(run_eagerly=True)
        model.fit(*data(), batch_size=BATCH, epochs=2, verbose=0, callbacks=[*extra])
        held = [model.alone.optimizer, model.within.optimizer, model.head_optimizer, *model.optimizers]
        assert all(isinstance(each, unisono.optimizers.Optimizer) for each in held)
        return model.get_weights()

    found = {}
    for replicas in (1, 2):
        found[replicas] = train(replicas)
        again = helpers.resumed(functools.partial(train, replicas), tmp_path / str(replicas), 4)
        helpers.assert_equal(found[replicas], again)
    for one, two in zip(*found.values()):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)  # float32 sums over two replicas
