"""Profiles of a range of steps, and on request from outside."""

import ctypes
import errno
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from helpers import Clock

import unisono
from unisono.callbacks.monitoring import profiler
from unisono.compat.tensorflow_private import profiles
from unisono.distribute.workers.addresses import free_ports

ROOT = Path(__file__).parents[2]
X, Y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")


def model():
    result = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    result.compile("sgd", "mse")
    return result


def fit_with_profile(folder):
    """A fit of eight steps, the second and third of which are profiled."""
    model().fit(X, Y, batch_size=8, verbose=0, callbacks=[unisono.callbacks.Profiler(folder, steps=(2, 3))])


@pytest.mark.parametrize("steps", [(1, 2), (9, 10), (7, 30)])
def test_profile_of_steps_is_written_where_the_plugin_searches(tmp_path, steps):
    callback = unisono.callbacks.Profiler(tmp_path, steps=steps)
    model().fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[callback])
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert file.stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]


@pytest.fixture
def profile_written_by(monkeypatch):
    """A function that replaces the one with which TensorFlow writes a profile."""

    def replace(write):
        session = types.SimpleNamespace(export_to_tb=write)
        monkeypatch.setattr(profiles, "profiler_v2", types.SimpleNamespace(_profiler=session))

    return replace


@pytest.mark.short(
    "Profiler-<lambda>-TensorFlow failed with SIGSEGV while it wrote it",
    "TensorBoard-<lambda>-TensorFlow could not write it",
)
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "TensorFlow failed with SIGSEGV while it wrote it"),
        (lambda: time.sleep(600), "TensorFlow did not write it within 20 s"),
        (lambda: 1 / 0, "TensorFlow could not write it"),
    ],
)
@pytest.mark.parametrize("callback", ["Profiler", "TensorBoard"])
def test_profile_that_cannot_be_written_ends_no_training(
    tmp_path, profile_written_by, monkeypatch, capfd, callback, write, reason
):
    if "within" in reason:
        monkeypatch.setattr(profiles, "time", Clock())
    real = profiles.profiler_v2
    profile_written_by(write)
    make = {
        "Profiler": lambda: unisono.callbacks.Profiler(tmp_path, steps=(2, 3)),
        "TensorBoard": lambda: keras.callbacks.TensorBoard(tmp_path, profile_batch=(2, 3)),  # pyright: ignore[reportArgumentType]
    }[callback]
    with pytest.warns(UserWarning, match=f"is missing: {reason}. Training goes on."):
        history = model().fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[make()])
    assert len(history.history["loss"]) == 2
    assert not list(tmp_path.rglob("*.xplane.pb"))
    assert real._profiler is None  # the next one can begin
    monkeypatch.undo()
    model().fit(X, Y, batch_size=8, verbose=0, callbacks=[make()])
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_profile_that_waits_for_a_processor_is_waited_for(tmp_path, profile_written_by, monkeypatch):
    free, clock = tmp_path / "free", Clock()

    def sleep(seconds):
        clock.now += seconds
        if clock.now > 1000:
            free.touch()
            time.sleep(0.001)

    def write():
        while not free.exists():
            time.sleep(0.001)

    clock.sleep = sleep
    monkeypatch.setattr(profiles, "time", clock)
    monkeypatch.setattr(profiler, "_state", lambda pid: (True, 0.0))
    profile_written_by(write)
    fit_with_profile(tmp_path)
    assert clock.now > 1000


def test_profile_that_computes_without_end_is_given_up(tmp_path, profile_written_by, monkeypatch):
    monkeypatch.setattr(profiles, "time", Clock())
    monkeypatch.setattr(profiler, "_state", lambda pid: (True, 11.0))
    profile_written_by(lambda: time.sleep(600))
    with pytest.warns(UserWarning, match="did not write it within 20 s"):
        fit_with_profile(tmp_path)


def test_profile_whose_first_fork_is_lost_is_written_by_another(tmp_path, profile_written_by):
    real = profiles.profiler_v2
    lost, written = tmp_path / "lost", tmp_path / "written"

    def write():
        if not lost.exists():
            lost.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        written.touch()

    profile_written_by(write)
    fit_with_profile(tmp_path)
    assert written.exists() and real._profiler is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPU features are only known on x86_64")
def test_nothing_that_is_freed_is_used_again_in_the_fork():
    keep = profiles._keeper()
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    child = os.fork()
    if not child:
        keep()
        freed = library.malloc(512)
        ctypes.memset(freed, 7, 512)
        library.free(ctypes.c_void_p(freed))
        kept = ctypes.string_at(freed, 512) == bytes([7]) * 512 and library.malloc(512) != freed
        os._exit(0 if kept else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_part_of_a_profile_is_not_taken_for_one(tmp_path, profile_written_by):
    def write_a_part():
        (folder,) = tmp_path.glob(".profile-*")
        (folder / "host.xplane.pb").write_bytes(b"part")
        os.kill(os.getpid(), signal.SIGKILL)

    profile_written_by(write_a_part)
    with pytest.warns(UserWarning, match="SIGKILL"):
        fit_with_profile(tmp_path)
    assert not list(tmp_path.rglob("*.xplane.pb"))


def test_program_that_ignores_its_children_has_its_profile(tmp_path):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        fit_with_profile(tmp_path)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_profile_without_memory_for_a_fork_is_a_warning(tmp_path, monkeypatch):
    def fork():
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="Cannot allocate memory"):
        patch.setattr(os, "fork", fork)
        fit_with_profile(tmp_path)
    assert profiles.profiler_v2._profiler is None


def test_compiled_calls_end_at_the_range_alone():
    callback = unisono.callbacks.Profiler("unused", steps=(10, 20))
    assert callback.steps_until_call(0) == 9
    callback._temporary = "under way"
    assert callback.steps_until_call(9) == 11
    callback._captured = True
    assert callback.steps_until_call(20) is None


def test_steps_that_never_come_are_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="captured nothing: training ended before step 100"):
        model().fit(X, Y, verbose=0, callbacks=[unisono.callbacks.Profiler(tmp_path, steps=(100, 110))])


@pytest.mark.long
@pytest.mark.process
def test_profile_on_demand_from_outside(tmp_path):
    (port,) = free_ports(1)
    callback = unisono.callbacks.Profiler(tmp_path / "unused", steps=None, port=port)
    trained = model()
    trained.fit(X, Y, verbose=0, callbacks=[callback])
    command = ["profile", "--service", f"localhost:{port}", "--log-dir", str(tmp_path), "--seconds", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "unisono", *command], env=environment, **pipes)
    while process.poll() is None:
        trained.fit(X, Y, epochs=5, verbose=0, callbacks=[callback])
        time.sleep(0.05)  # the other process needs the processor to import TensorFlow
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert Path(out.strip().splitlines()[-1]).stat().st_size > 0
    assert not (tmp_path / "unused").exists()


def test_port_that_is_taken_is_rejected_before_the_first_step(tmp_path):
    made = model()
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        callback = unisono.callbacks.Profiler(tmp_path / "logs", port=port)
        message = f"`port` of Profiler must be free on this machine, but {port} is not"
        with pytest.raises(ValueError, match=message):
            made.fit(X, Y, verbose=0, callbacks=[callback])
    assert int(made.optimizer.iterations) == 0
