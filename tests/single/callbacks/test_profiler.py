"""Profiles of a range of steps, and on request from outside."""

import json
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Stop, StopAt

import unisono
from unisono.callbacks.monitoring import profiler
from unisono.compat.keras_private.callbacks import find_profiled_steps
from unisono.distribute.workers.addresses import free_ports

X, Y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")


def model():
    result = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    result.compile("sgd", "mse")
    return result


@pytest.mark.parametrize("steps", [(1, 2), (9, 10), (7, 30)])
def test_profile_of_steps_is_written_where_the_plugin_searches(tmp_path, steps):
    callback = unisono.callbacks.Profiler(tmp_path, steps=steps)
    model().fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[callback])
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert file.stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]


def test_interrupted_profile_is_dropped_and_the_next_one_can_begin(tmp_path):
    def fit(*callbacks):
        profile = unisono.callbacks.Profiler(tmp_path, steps=(2, 6))
        model().fit(X, Y, batch_size=8, verbose=0, callbacks=[profile, *callbacks])

    with pytest.raises(Stop):
        fit(StopAt(3))
    assert not list(tmp_path.iterdir())
    fit()
    assert list(tmp_path.rglob("*.xplane.pb"))


class Several(tf.distribute.Strategy):
    """Stands for a strategy over workers."""

    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("worker", "device", "able"), [(0, "CPU", True), (1, "CPU", False), (1, "GPU", True)]
)
def test_of_several_workers_on_cpus_only_the_first_is_profiled(monkeypatch, worker, device, able):
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": worker}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    monkeypatch.setattr(profiler, "spans_workers", lambda strategy: isinstance(strategy, Several))
    devices = [types.SimpleNamespace(device_type=device)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda: devices)
    board = keras.callbacks.TensorBoard("unused", profile_batch=(2, 3))  # pyright: ignore[reportArgumentType]
    profiler.keep_from_crash(board, Several())
    assert (find_profiled_steps(board) is not None) == able == profiler.may_profile(Several())
    assert profiler.may_profile(tf.distribute.get_strategy())
    (port,), opened = free_ports(1), []
    monkeypatch.setattr(tf.profiler.experimental.server, "start", opened.append)
    callback = unisono.callbacks.Profiler("unused", steps=None, port=port - worker)
    callback.set_model(types.SimpleNamespace(distribute_strategy=Several()))
    callback.on_train_begin()
    assert opened == [port] * able  # a profile on demand would crash it too


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
    process = subprocess.Popen([sys.executable, "-m", "unisono", *command], **pipes)
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
