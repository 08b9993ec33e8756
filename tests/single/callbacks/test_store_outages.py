"""A store that fails for a while, in several ways, at each call of every file that a run writes: training goes on."""

from __future__ import annotations

import errno
import itertools
import json
import re
import warnings

import fsspec
import keras
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from upath import UPath
from upath.implementations.memory import MemoryPath
from upath.registry import register_implementation

import unisono
from unisono import callbacks
from unisono.distribute import objects

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
FAULTS = (
    TimeoutError("no answer"),
    ConnectionResetError(errno.ECONNRESET, "reset by peer"),
    OSError(errno.EBUSY, "503 Slow Down"),
    PermissionError(errno.EACCES, "ExpiredToken: the provided token has expired"),
    OSError(errno.EDQUOT, "QuotaExceeded"),
    FileNotFoundError(errno.ENOENT, "the bucket does not exist"),
)
FOR_EVER = 10**9
CALLS = ["ls", "find", "info", "exists", "cat_file", "put_file", "rm_file", "cp_file"]


class Outages(MemoryFileSystem):
    """Of the calls since `begin`, those from number `at` on fail with `fault`: `length` of them."""

    protocol = "outages"
    cachable = False
    fault, at, length = FAULTS[0], FOR_EVER, 0
    numbers = None

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).replace("outages://", "memory://"))

    @classmethod
    def begin(cls):
        cls.numbers = itertools.count()

    @classmethod
    def count(cls):
        return next(cls.numbers)


def _failing(name):
    def call(self, *args, **kwargs):
        number = -1 if Outages.numbers is None else Outages.count()
        if 0 <= number - Outages.at < Outages.length:
            raise type(Outages.fault)(*Outages.fault.args)  # with a new traceback
        return getattr(MemoryFileSystem, name)(self, *args, **kwargs)

    return call


for each in CALLS:
    setattr(Outages, each, _failing(each))
fsspec.register_implementation("outages", Outages, clobber=True)
register_implementation("outages", MemoryPath, clobber=True)


class Killed(BaseException):
    pass


class Begin(keras.callbacks.Callback):
    """Begins to count the calls after the first step, ends an outage before the last epoch; kills the run at a step."""

    def __init__(self, kill_at=None):
        super().__init__()
        self.steps, self.kill_at = 0, kill_at

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == 1 and self.kill_at is None:
            Outages.begin()
        if self.steps == self.kill_at:
            raise Killed

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and Outages.length < FOR_EVER:
            Outages.length = 0


@pytest.fixture(autouse=True)
def empty_store(stop_clock):
    MemoryFileSystem.store.clear()
    stop_clock(objects)
    yield
    MemoryFileSystem.store.clear()
    plan()


def plan(fault=None, at=FOR_EVER, length=0):
    Outages.fault, Outages.at, Outages.length, Outages.numbers = fault, at, length, None


def train(url, begin, **arguments):
    """A run that writes every kind of file."""
    keras.utils.set_random_seed(3)
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    csv = keras.callbacks.CSVLogger(f"{url}/log.csv", append=True)
    given = [
        begin,
        callbacks.ModelCheckpoint(
            f"{url}/{{epoch}}.weights.h5", "loss", save_weights_only=True, keep_last=1, keep_best=1
        ),
        callbacks.JSONLines(f"{url}/log.jsonl", clock=lambda: 1.0),
        csv,
        keras.callbacks.ModelCheckpoint(f"{url}/keras/{{epoch}}.weights.h5", save_weights_only=True),
        callbacks.TrainingReport(f"{url}/report.html", clock=lambda: 1.0),
        callbacks.TensorBoard(f"{url}/events"),
        callbacks.AnomalyReport(f"{url}/anomaly.json"),
        callbacks.BackupAndRestore(f"{url}/backup", save_freq=1, **arguments),
    ]
    try:
        history = model.fit(X, X[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=given)
    finally:  # Keras closes it at the end of training alone
        if csv.csv_file is not None:
            csv.csv_file.close()
    return [value.tolist() for value in model.get_weights()], history.history


def files_of(url):
    """What a run leaves, without backups and event files, whose names and times differ."""
    names = objects.names_below(UPath(url), "")
    read = {name: (UPath(url) / name).read_bytes() for name in names if name.startswith("log.")}
    return sorted(name for name in names if "events" not in name and "report" not in name), read


@pytest.fixture(scope="module")
def undisturbed():
    """The result of a run, its files, and how many calls its training made."""
    begin = Begin()
    result = train("outages://bucket/alone", begin)
    calls = next(Outages.numbers)
    assert calls > 60
    return result, files_of("outages://bucket/alone"), calls


LENGTHS = (1, 4, 9, 40)


@pytest.mark.parametrize("shift", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 48))])
@pytest.mark.long
def test_an_outage_at_any_call_changes_nothing(undisturbed, shift):
    """Each call gets one kind of fault and one length; all the shifts together cover all."""
    result, files, calls = undisturbed
    cases = list(itertools.product(FAULTS, LENGTHS))
    for at in range(shift % 6, calls // 2, 6):
        fault, length = cases[(5 * at + shift) % len(cases)]
        plan(fault, at, length)
        url = f"outages://bucket/{at}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert train(url, Begin()) == result, (at, fault, length)
        assert files_of(url) == files, (at, fault, length)


@pytest.mark.short("PermissionError")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_an_outage_for_ever_is_an_error_after_the_last_step(undisturbed, fault):
    """It is a warning before, and what was saved is not changed."""
    for at in (0, 7, 25):
        plan(fault, at, FOR_EVER)
        begin = Begin()
        with (
            warnings.catch_warnings(record=True) as caught,
            pytest.raises(callbacks.SaveError, match=r"The store failed at outages:/+bucket/"),
        ):
            warnings.simplefilter("always")
            train(f"outages://bucket/{at}", begin)
        assert any(re.search(r"The store failed at .* Training goes on", str(w.message)) for w in caught)
        assert begin.steps == 6
        saves = [w for w in caught if "next save tries again" in str(w.message)]
        assert len(saves) <= 6, "in a long outage not each save warns"


@pytest.mark.parametrize("first", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 12))])
def test_a_restart_in_an_outage_resumes_or_is_an_error(undisturbed, first):
    """At each call before the first step, and never from the beginning."""
    result, files, _ = undisturbed
    cases = list(itertools.product(FAULTS, (1, 4, 9)))
    at, ended = first, 0
    while not ended:
        MemoryFileSystem.store.clear()
        plan()
        with pytest.raises(Killed):
            train("outages://bucket/run", Begin(kill_at=4))
        fault, length = cases[(5 * (at // 12) + first) % len(cases)]
        plan(fault, at, length)
        begin = Begin()
        begin.kill_at = FOR_EVER  # counts from the beginning
        Outages.begin()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                resumed = train("outages://bucket/run", begin)
            except (callbacks.SaveError, callbacks.DamagedFileError):
                assert begin.steps == 0
            else:
                assert begin.steps < 6 and resumed == result, (at, fault, length)
                assert files_of("outages://bucket/run") == files
                ended = begin.steps and next(Outages.numbers) - 40 < at
        at += 12


def test_lines_of_a_log_survive_a_list_that_lacks_them():
    """A bucket that is absent for a moment when a run starts again is no empty log."""
    with pytest.raises(Killed):
        train("outages://bucket/run", Begin(kill_at=5))
    train("outages://bucket/run", Begin())
    lines = UPath("outages://bucket/run/log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]


def test_object_that_a_store_denies_for_a_moment_is_not_taken_for_absent(tmp_path):
    path = UPath("outages://bucket/object")
    local = tmp_path / "source"
    local.write_bytes(b"1")
    objects.upload(local, path)
    plan(FAULTS[-1], 0, 2)
    Outages.begin()
    assert objects.download(path, tmp_path, may_be_absent=False).read_bytes() == b"1"
    Outages.begin()
    objects.remove_file(path, is_there=True)
    plan()
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        objects.remove_file(path)
