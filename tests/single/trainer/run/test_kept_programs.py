"""Programs that an earlier process compiled: a later one says so, has the same bits, and leaves its children alone."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(900)]

PROGRAM = """
import hashlib, os, subprocess, sys
{before}
import unisono
import keras, numpy as np
keras.utils.set_random_seed(0)
model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense({units}, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", jit_compile=True)
print("child", subprocess.run("echo $TF_XLA_FLAGS$XLA_FLAGS", shell=True, capture_output=True, text=True).stdout)
x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
model.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=2, validation_data=(x, x[:, :1]))
weights = b"".join(each.tobytes() for each in model.get_weights())
print("bits", hashlib.sha256(weights).hexdigest())
"""


def start(home, units=8, before="", **environ):
    """A process of a user with this home, who has set no variable but `environ`."""
    unset = ("TF_XLA_FLAGS", "XLA_FLAGS", "XDG_CACHE_HOME", "UNISONO_CACHE")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", PROGRAM.format(units=units, before=before)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**kept, "HOME": str(home), **environ}, **pipes)


def end(process, warned=False):
    """The last line of `fit`, and the bits of the weights."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    assert "cpu_aot_loader" not in errors and "text_format" not in errors
    assert errors.count("UserWarning") == warned, errors
    assert "child \n" in out
    lines = out.splitlines()
    last = next(n for n, line in enumerate(lines) if line.startswith("2 epochs in"))
    return " ".join(lines[last:-1]), lines[-1]


def run(home, warned=False, **how):
    return end(start(home, **how), warned)


def entries(home):
    return [path for path in (home / ".cache/unisono").rglob("*.pb")]


def test_second_process_compiles_nothing_and_has_the_same_bits(tmp_path):
    none, first, second = run(tmp_path, UNISONO_CACHE=""), run(tmp_path), run(tmp_path)
    assert "compiled before" not in none[0] + first[0] and "compiled before" in second[0]
    assert none[1] == first[1] == second[1]
    assert (tmp_path / ".cache/unisono").stat().st_mode & 0o777 == 0o700
    assert "compiled before" not in run(tmp_path, units=9)[0]
    for n, path in enumerate(sorted(entries(tmp_path))):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content[: -7 if n % 2 else None])
    damaged = run(tmp_path)
    assert "compiled before" not in damaged[0] and damaged[1] == none[1]


def test_eight_processes_at_once_of_which_some_are_killed(tmp_path):
    running = [start(tmp_path) for _ in range(8)]
    while not entries(tmp_path):
        time.sleep(0.01)
    for process in running[:2]:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert len({end(process)[1] for process in running[2:]}) == 1
    assert "compiled before" in run(tmp_path)[0]


def test_home_that_is_full_or_cannot_be_written_is_one_warning(tmp_path):
    full = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, {resource.RLIM_INFINITY}))"
    none, before = run(tmp_path, UNISONO_CACHE=""), f"import signal; {full}"
    assert run(tmp_path, warned=True, before=before)[1] == none[1] and not entries(tmp_path)
    assert run("/proc/none", warned=True, MPLCONFIGDIR=str(tmp_path))[1] == none[1]


def test_last_line_says_that_the_import_came_too_late(tmp_path):
    before = "import tensorflow as tf; tf.config.list_physical_devices()"
    last, *_ = run(tmp_path, before=before)
    assert "import it first" in last and not (tmp_path / ".cache/unisono").exists()
