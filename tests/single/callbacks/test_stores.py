"""Callbacks that write to a store: `memory://` of fsspec, and the same store with faults at each call in turn."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import warnings
from pathlib import Path

import fsspec
import keras
import numpy as np
import pytest
import tensorflow as tf
from fsspec.implementations.memory import MemoryFileSystem
from helpers import open_files
from upath import UPath
from upath.implementations.memory import MemoryPath
from upath.registry import register_implementation

import unisono
from unisono import callbacks
from unisono.callbacks.backup.files import container
from unisono.callbacks.backup.files import owner as owner_module
from unisono.callbacks.backup.files.owner import FolderInUseError, FolderOwner
from unisono.callbacks.backup.files.store import BackupStore, backup_paths
from unisono.commands import main
from unisono.distribute import objects

X = np.random.default_rng(0).normal(size=(32, 3))
Y = X[:, :1]


class Killed(BaseException):
    pass


class KillAt(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) >= self.step:
            raise Killed


class Faulty(MemoryFileSystem):
    """A memory store in which one call of those that read or write goes wrong."""

    protocol = "faulty"
    cachable = False
    kind = None  # how: "fail", "lose the answer", "cut", "twice", "late" (a write that the next other one overtakes)
    late = None  # path, bytes, whether it must be new
    at = -1  # which call
    calls = itertools.count()
    names: list[str] = []

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).replace("faulty://", "memory://"))

    @classmethod
    def plan(cls, kind, at):
        cls.kind, cls.at, cls.calls, cls.names, cls.late = kind, at, itertools.count(), [], None

    def fault(self, name, call, *args, **kwargs):
        number = next(Faulty.calls)
        Faulty.names.append(name)
        if number != Faulty.at:
            return call(*args, **kwargs)
        if Faulty.kind == "late":
            if name == "put":
                path = self._strip_protocol(args[1])
                Faulty.late = path, Path(args[0]).read_bytes(), kwargs.get("mode") == "create"
            raise TimeoutError("no answer yet")
        if Faulty.kind == "fail":
            raise ConnectionError("secret-key-of-mine was not let through")
        if Faulty.kind == "lose the answer":
            call(*args, **kwargs)
            raise TimeoutError("no answer")
        if Faulty.kind == "twice":
            call(*args, **kwargs)
            return call(*args, **kwargs)
        result = call(*args, **kwargs)
        if name == "put":
            path = self._strip_protocol(args[1])
            self.pipe_file(path, self.cat_file(path)[:-3])
        return result[:-1] if name == "cat" else result

    def put_file(self, *args, **kwargs):
        self.fault("put", super().put_file, *args, **kwargs)
        if Faulty.late is None:
            return
        path, data, new = Faulty.late
        if path != self._strip_protocol(args[1]) or data != Path(args[0]).read_bytes():
            Faulty.late = None
            if not (new and path in self.store):
                self.pipe_file(path, data)

    def cat_file(self, *args, **kwargs):
        return self.fault("cat", super().cat_file, *args, **kwargs)

    def info(self, *args, **kwargs):
        return self.fault("info", super().info, *args, **kwargs)

    def rm_file(self, *args, **kwargs):
        return self.fault("remove", super().rm_file, *args, **kwargs)


fsspec.register_implementation("faulty", Faulty, clobber=True)
register_implementation("faulty", MemoryPath, clobber=True)


@pytest.fixture(autouse=True)
def empty_store(stop_clock):
    MemoryFileSystem.store.clear()
    Faulty.plan(None, -1)
    stop_clock(objects)
    yield
    MemoryFileSystem.store.clear()


def new_model():
    keras.utils.set_random_seed(3)
    model = unisono.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    model.compile(unisono.optimizers.Adam(0.01), "mse")
    return model


@functools.cache
def traced_model():
    """A model whose step is compiled once for all tests, and its first state."""
    model = new_model()
    model.fit(X, Y, batch_size=8, verbose=0)
    first, again = new_model(), [*model.variables, *model.optimizer.variables]
    first.optimizer.build(first.trainable_variables)
    return model, again, [value.numpy() for value in (*first.variables, *first.optimizer.variables)]


def train(*given, epochs=2, model=None):
    """Train `model`, else one that has just been made; return its weights."""
    if model is None:
        model, variables, first = traced_model()
        keras.utils.set_random_seed(3)
        for variable, value in zip(variables, first, strict=True):
            variable.assign(value)
    model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=list(given))
    return model.get_weights()


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def killed_and_resumed(url, **arguments):
    def backup():
        return callbacks.BackupAndRestore(url, save_freq=2, **arguments)

    with pytest.raises(Killed):
        train(backup(), KillAt(7))
    return train(backup())


@pytest.mark.long
def test_resumed_run_has_the_bits_of_one_that_was_not_killed(capsys):
    url = "memory://bucket/run"
    assert same(killed_and_resumed(url, delete_when_done=False), train())
    assert (
        "Resuming from memory://bucket/run/backup-000003.unisono at epoch 2, step 2"
        in capsys.readouterr().out
    )
    found = callbacks.list_backups(url)
    assert [info.status for info in found] == ["good", "good"]
    assert callbacks.latest_backup(url).total_steps == 8
    summary, content = callbacks.read_backup(found[0].path)
    assert summary["total_steps"] == 8 and content["counters"]
    assert not [name for name in MemoryFileSystem.store if "owner" in name]


def test_slash_at_the_end_of_a_folder_is_not_doubled():
    folder = "memory://bucket/a/"
    train(
        callbacks.BackupAndRestore(f"{folder}/backup", delete_when_done=False),
        callbacks.BackupAndRestore(UPath(f"{folder}/given"), delete_when_done=False),
        callbacks.ModelCheckpoint(f"{folder}/{{epoch}}.weights.h5", save_weights_only=True),
        callbacks.JSONLines(f"{folder}/log.jsonl"),
        keras.callbacks.CSVLogger(f"{folder}/log.csv"),
        callbacks.TensorBoard(f"{folder}/events/"),
    )
    assert {name.split("/")[3] for name in MemoryFileSystem.store} == {
        "backup",
        "given",
        "1.weights.h5",
        "2.weights.h5",
        "log.jsonl",
        "log.csv",
        "events",
    }
    assert all(name.startswith("/bucket/a/") and "//" not in name for name in MemoryFileSystem.store)


def test_backups_are_removed_when_training_is_done():
    train(callbacks.BackupAndRestore(UPath("memory://bucket/run")))
    assert not MemoryFileSystem.store


@pytest.mark.parametrize("kind", ["fail", "lose the answer", "cut", "twice", "late"])
@pytest.mark.short("lose the answer", "cut")
def test_one_fault_at_each_call_loses_nothing(kind, monkeypatch):
    """Every call that reads or writes goes wrong once, in a run that is killed and resumed."""
    monkeypatch.setenv("MY_SECRET_KEY", "secret-key-of-mine")
    Faulty.plan(None, -1)
    save_and_read("faulty://bucket/first")
    calls = len(Faulty.names)
    assert calls > 30 and set(Faulty.names) == {"put", "cat", "info", "remove"}
    for at in range(calls):
        MemoryFileSystem.store.clear()
        Faulty.plan(kind, at)
        save_and_read(f"faulty://bucket/{kind}-{at}")
        assert len(Faulty.names) >= calls


def save_and_read(url):
    """What `BackupAndRestore` does to a store."""
    place = UPath(url)
    owner = FolderOwner(place)
    store = BackupStore(place, keep=2, check=owner.check)
    store.prepare()
    owner.acquire()
    store.remove_leftovers()
    assert store.newest_good(lambda path: container.read(path)[1]).content is None
    for number in range(3):
        store.write({"a": np.arange(number)}, {"epoch": number})
    owner._keep_alive()
    found = store.newest_good(lambda path: container.read(path)[1])
    assert len(found.content["a"]) == 2 and not found.problems
    assert [path.name for path in backup_paths(place)] == ["backup-000003.unisono", "backup-000002.unisono"]
    owner.release()
    assert not (place / "owner.json").exists()


@pytest.mark.parametrize("kind", ["fail", "cut", "late"])
@pytest.mark.short("cut")
def test_faults_in_a_run_that_is_killed_and_resumed(kind):
    reference = train()
    for at in (3, 17, 29):
        Faulty.plan(kind, at)
        assert same(killed_and_resumed(f"faulty://bucket/{at}"), reference)
        assert len(Faulty.names) > at


def test_store_that_stays_unreachable_is_an_error_before_the_first_step_without_credentials(monkeypatch):
    monkeypatch.setenv("MY_SECRET_KEY", "secret-key-of-mine")

    def refuse(self, *args, **kwargs):
        raise ConnectionError("secret-key-of-mine sig=abcdef123&x=1 was not let through")

    monkeypatch.setattr(Faulty, "fault", refuse)
    for callback in (
        callbacks.BackupAndRestore("faulty://bucket/run"),
        callbacks.ModelCheckpoint("faulty://bucket/{epoch}.keras"),
        callbacks.JSONLines("faulty://bucket/log.jsonl"),
        keras.callbacks.CSVLogger("faulty://bucket/log.csv"),
    ):
        model = new_model()
        with pytest.raises(
            callbacks.SaveError, match=r"bucket.*ConnectionError: .*Check the bucket"
        ) as caught:
            train(callback, model=model)
        assert "secret" not in str(caught.value) and "abcdef" not in str(caught.value)
        assert int(model.optimizer.iterations.numpy()) == 0


class Outage(keras.callbacks.Callback):
    """The store answers nothing after the steps of `steps`. It runs before the backup."""

    def __init__(self, monkeypatch, steps):
        super().__init__()
        self.steps, self.down, self.done = steps, False, 0
        faulty = Faulty.fault

        def answer(store, name, call, *args, **kwargs):
            if self.down:
                raise ConnectionError("no route to host")
            return faulty(store, name, call, *args, **kwargs)

        monkeypatch.setattr(Faulty, "fault", answer)

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        self.down = self.done in self.steps

    def on_train_end(self, logs=None):
        self.down = False


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.long
def test_run_goes_on_while_its_store_is_down_and_saves_when_it_is_back(monkeypatch, background):
    outage = Outage(monkeypatch, (3, 4))
    backup = callbacks.BackupAndRestore(
        "faulty://bucket/down", save_freq=1, background=background, delete_when_done=False
    )
    checkpoint = callbacks.ModelCheckpoint(
        "faulty://bucket/{epoch}-{batch}.weights.h5", save_freq=1, save_weights_only=True
    )
    with pytest.warns(UserWarning, match="no route to host.*Training goes on, and the next save tries again"):
        weights = train(outage, checkpoint, backup)
    assert same(weights, train())
    assert callbacks.latest_backup("faulty://bucket/down").epoch == 2
    names = objects.names_in(UPath("faulty://bucket"))
    assert sum(name.endswith(".weights.h5") for name in names) == 8


class OutageFrom(keras.callbacks.Callback):
    """Nothing is answered from call `begin` to the end of its step; without `answers` calls are carried out."""

    def __init__(self, monkeypatch, begin, answers):
        super().__init__()
        self.step, self.down_in = 0, None
        calls, faulty = itertools.count(), Faulty.fault

        def answer(store, name, call, *args, **kwargs):
            if next(calls) >= begin and self.down_in is None:
                self.down_in = self.step
            if self.step != self.down_in:
                return faulty(store, name, call, *args, **kwargs)
            if not answers:
                faulty(store, name, call, *args, **kwargs)
            raise ConnectionError("no route to host")

        monkeypatch.setattr(Faulty, "fault", answer)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1


@pytest.mark.parametrize(
    "background, answers, apart",
    [
        (True, True, 3),
        pytest.param(True, True, 1, marks=pytest.mark.long),
        pytest.param(True, False, 1, marks=pytest.mark.long),
        pytest.param(False, False, 1, marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_an_outage_may_begin_at_any_call(background, answers, apart):
    expected, has_warned = train(), False
    for begin in range(8, 22, apart):  # a step or two, and all of a save
        backup = callbacks.BackupAndRestore(
            f"faulty://bucket/{begin}", save_freq=1, background=background, delete_when_done=False
        )
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            outage = OutageFrom(patch, begin, answers)
            assert same(train(outage, backup), expected)
        assert callbacks.latest_backup(f"faulty://bucket/{begin}").epoch == 2
        assert outage.down_in is not None
        has_warned |= any("Training goes on" in str(each.message) for each in found)
    assert has_warned


def test_store_that_is_down_is_no_owner_and_at_the_end_an_error(monkeypatch):
    outage = Outage(monkeypatch, range(6, 100))
    monkeypatch.setattr(outage, "on_train_end", lambda logs=None: None)
    backup = callbacks.BackupAndRestore("faulty://bucket/down", save_freq=1, background=False)
    with (
        pytest.warns(UserWarning, match="Training goes on"),
        pytest.raises(callbacks.SaveError, match="no route to host"),
    ):
        train(outage, backup)
    outage.down = False
    assert callbacks.latest_backup("faulty://bucket/down").total_steps == 5


def test_two_runs_never_write_to_one_place(stop_clock):
    first = FolderOwner(UPath("memory://bucket/run"))
    first.acquire()
    with pytest.raises(FolderInUseError, match=r"memory://bucket/run is in use by another fit"):
        FolderOwner(UPath("memory://bucket/run")).acquire()
    # An owner in another container: its object changes while it lives.
    path = UPath("memory://bucket/run/owner.json")
    said = json.loads(path.read_bytes())
    elsewhere = said | {"process": "00000000-1-1", "host": "other", "token": "theirs"}
    first.release()
    path.fs.pipe_file(path.path, json.dumps(elsewhere).encode())
    clock = stop_clock(owner_module)
    second = FolderOwner(UPath("memory://bucket/run"), beat=1e4, patience=1e4)
    second.acquire()
    assert clock.now >= 1e4, "it did not change for so long"
    path.fs.pipe_file(path.path, json.dumps(elsewhere).encode())
    with pytest.raises(FolderInUseError, match="has been taken over by process 1 on other"):
        second.check()
    second.release()
    assert json.loads(path.read_bytes())["token"] == "theirs"


EVALUATOR = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}'


def test_same_job_takes_over_at_once(monkeypatch, stop_clock):
    class Waits(Exception):
        pass

    def wait(seconds):
        raise Waits

    stop_clock(owner_module).sleep = wait
    path = UPath("memory://bucket/run/owner.json")
    said = {"process": "00000000-1-1", "host": "other", "since": 1.0, "token": "theirs"}
    for before, now, at_once in (
        (
            {"run": "slurm 7 0", "restarts": 0},
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"},
            True,
        ),
        ({"run": "slurm 7 0", "restarts": 1}, {"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0"}, False),
        ({"run": "night"}, {"UNISONO_RUN": "night"}, True),
        ({"run": "night"}, {"UNISONO_RUN": "night/0123"}, True),
        ({"run": ""}, {}, False),
        ({"run": "night"}, {"UNISONO_RUN": "night", "TF_CONFIG": EVALUATOR}, False),
    ):
        path.fs.pipe_file(path.path, json.dumps(said | before).encode())
        with monkeypatch.context() as patch:
            for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "UNISONO_RUN"):
                patch.delenv(name, raising=False)
            for name, value in now.items():
                patch.setenv(name, value)
            owner = FolderOwner(path.parent)
            with contextlib.nullcontext() if at_once else pytest.raises(Waits):
                owner.acquire()
            owner.release()


def test_checkpoints_keep_the_best_and_the_last(tmp_path):
    for place in ("memory://bucket/models", str(tmp_path)):
        train(callbacks.ModelCheckpoint(f"{place}/{{epoch}}-{{loss:.3f}}.keras", keep_last=2), epochs=4)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [path.name for path in sorted(UPath("memory://bucket/models").iterdir())] == names and len(
        names
    ) == 2
    url = f"memory://bucket/models/{names[0]}"
    assert callbacks.verify_checkpoint(url) is True
    assert UPath(url).read_bytes()[:2] == b"PK"
    UPath(url).write_bytes(UPath(url).read_bytes()[:-200])
    assert callbacks.verify_checkpoint(url) is False


def test_checkpoint_does_not_overwrite_a_file_of_others():
    UPath("memory://bucket/best.keras").write_bytes(b"mine")
    with pytest.warns(
        UserWarning, match=r"renamed memory://bucket/best.keras.* to memory://bucket/best.keras.old"
    ):
        train(callbacks.ModelCheckpoint("memory://bucket/best.keras"))
    assert UPath("memory://bucket/best.keras.old").read_bytes() == b"mine"
    assert callbacks.verify_checkpoint("memory://bucket/best.keras")


@pytest.mark.long
def test_logs_reports_and_events_are_those_of_a_local_run(tmp_path):
    def written(place):
        train(
            callbacks.JSONLines(f"{place}/log.jsonl", clock=lambda: 1.0),
            keras.callbacks.CSVLogger(f"{place}/log.csv"),
            callbacks.TrainingReport(f"{place}/report.html"),
            callbacks.TensorBoard(f"{place}/events"),
            keras.callbacks.ModelCheckpoint(f"{place}/keras/{{epoch}}.weights.h5", save_weights_only=True),
        )

    written("memory://bucket/run")
    written(tmp_path)
    store = UPath("memory://bucket/run")
    for name in ("log.jsonl", "log.csv"):
        assert (store / name).read_bytes() == (tmp_path / name).read_bytes()
    assert b"<html" in (store / "report.html").read_bytes() and (store / "report.jsonl").exists()
    assert sorted(p.name for p in (store / "keras").iterdir()) == ["1.weights.h5", "2.weights.h5"]
    events = [p for p in (store / "events" / "train").iterdir() if "tfevents" in p.name]
    assert len(events) == 2  # a file for each epoch, which is uploaded once


def test_runs_in_a_store_are_compared_on_a_local_page(tmp_path, monkeypatch, capsys):
    for name in ("one", "two/deep"):
        train(callbacks.TrainingReport(f"memory://bucket/runs/{name}/report.html"))
    UPath("memory://bucket/runs/two/log.jsonl").write_text('{"epoch": 0}\n')
    monkeypatch.chdir(tmp_path)
    assert callbacks.compare_reports("memory://bucket/runs") == Path("report.html")
    page = Path("report.html").read_text()
    assert "2 training runs side by side" in page and "</i>one</td>" in page and "</i>two/deep</td>" in page
    for place in ("memory://bucket/runs/one", "memory://bucket/runs/one/report.jsonl"):
        assert main(["report", place, "-o", "one.html"]) == 0
        assert capsys.readouterr().out == "one.html: 1 training run\n"
    assert "Did it learn?" in Path("one.html").read_text()
    assert main(["report", "memory://bucket/nothing"]) == 1
    assert "no numbers of a training run in memory://bucket/nothing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["report", "memory://bucket/runs", "-o", "memory://bucket/page.html"])
    assert "must be in a local or mounted file system" in capsys.readouterr().err


def test_store_that_fails_while_reports_are_read_is_named_without_secrets(tmp_path, monkeypatch):
    def fail(*arguments):
        raise ConnectionError("secret-key-of-mine was not let through")

    monkeypatch.setattr(Faulty, "find", fail)
    with pytest.raises(OSError, match=r"\*\*\* was not let through.*bucket") as caught:
        callbacks.compare_reports(
            UPath("faulty://bucket", token="secret-key-of-mine"), tmp_path / "page.html"
        )
    assert "secret" not in str(caught.value)


def test_resumed_log_continues():
    def given():
        return callbacks.JSONLines("memory://bucket/log.jsonl"), callbacks.BackupAndRestore(
            "memory://bucket/b", save_freq=2
        )

    with pytest.raises(Killed):
        train(*given(), KillAt(7))
    train(*given())
    lines = UPath("memory://bucket/log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1]


def test_file_of_others_is_rejected_before_the_first_step():
    UPath("memory://bucket/log.jsonl").write_bytes(b"mine")
    with pytest.raises(callbacks.SaveError, match="would overwrite"):
        train(callbacks.JSONLines("memory://bucket/log.jsonl"))
    assert UPath("memory://bucket/log.jsonl").read_bytes() == b"mine"


def test_upload_that_fails_while_training_is_tried_again(monkeypatch):
    """The callback's file is complete at the end, and one warning says that an upload failed."""
    from unisono.callbacks import spool

    made = spool.Spool()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with made:
            place = made.place("path", "memory://bucket/a.txt", folder=False)
            Path(place).write_text("text")
            with monkeypatch.context() as patch:
                down = OSError(5, "down", "memory://bucket/a.txt")
                patch.setattr(spool, "upload", lambda *_: (_ for _ in ()).throw(down))
                assert made._tick() and made._tick()
    assert UPath("memory://bucket/a.txt").read_text() == "text"
    assert [str(each.message) for each in caught if "tried again" in str(each.message)]


def test_custom_loop_says_where_stores_work():
    log = callbacks.JSONLines("memory://bucket/log.jsonl")
    log.set_model(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="only in `fit` and `evaluate` of a Unisono model"):
        log.on_train_begin()


def test_evaluate_writes_events_to_a_store(tmp_path):
    model = new_model()
    for callback in (
        callbacks.TensorBoard("memory://bucket/ours"),
        keras.callbacks.TensorBoard("memory://bucket/keras"),
    ):
        model.evaluate(X, Y, verbose=0, callbacks=[callback])
        assert not [file for file in open_files() if "unisono-spool" in file]  # the callback lives
    assert {name.split("/")[2] for name in MemoryFileSystem.store} == {"keras", "ours"}
    for kind in ("ours", "keras"):
        (path,) = (
            UPath("memory:/" + name) for name in MemoryFileSystem.store if f"{kind}/validation" in name
        )
        local = tmp_path / kind
        local.write_bytes(path.read_bytes())
        assert "evaluation_loss_vs_iterations" in str(
            list(tf.data.TFRecordDataset(str(local)).as_numpy_iterator())
        )


def test_events_in_the_fit_of_keras_are_rejected():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`TensorBoard` can write to a store only in `fit`"):
        model.fit(X, Y, verbose=0, callbacks=[callbacks.TensorBoard("memory://bucket/events")])
    assert not MemoryFileSystem.store


def test_model_is_loaded_from_a_store():
    weights = train(callbacks.ModelCheckpoint("memory://bucket/model.keras"))
    assert same(unisono.load_model("memory://bucket/model.keras").get_weights(), weights)
    with pytest.raises(FileNotFoundError):
        unisono.load_model("memory://bucket/none.keras")


def test_keras_backup_in_a_store_is_rejected():
    with pytest.raises(ValueError, match=r"use unisono\.callbacks\.BackupAndRestore"):
        train(keras.callbacks.BackupAndRestore("memory://bucket/b"))


def test_backups_command(capsys):
    from unisono.commands import backups

    train(callbacks.BackupAndRestore("memory://bucket/listed", delete_when_done=False))
    assert backups.main(["memory://bucket/listed"]) == 0
    assert "backup-000002.unisono" in capsys.readouterr().out


def test_worker_that_trains_alone_and_is_not_the_chief_resumes_nothing(monkeypatch):
    cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.warns(UserWarning, match="each worker trains a separate model"):
        train(callbacks.BackupAndRestore("memory://bucket/alone"))
    assert not MemoryFileSystem.store
