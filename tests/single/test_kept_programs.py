"""Programs that an earlier process compiled: the second says so, has the same bits, and leaves its children alone."""

import os
import subprocess
import sys

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
x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
model.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=2, validation_data=(x, x[:, :1]))
weights = b"".join(each.tobytes() for each in model.get_weights())
print("bits", hashlib.sha256(weights).hexdigest())
print("child", os.environ.get("TF_XLA_FLAGS"), os.environ.get("XLA_FLAGS"))
"""


def run(folder, units=8, before="", **environ):
    """The last line of `fit`, and the lines after it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("TF_XLA_FLAGS", "XLA_FLAGS")}
    program = PROGRAM.format(units=units, before=before)
    environ = {**kept, "UNISONO_CACHE": str(folder), **environ}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program], env=environ, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert b"cpu_aot_loader" not in done.stderr and b"text_format" not in done.stderr
    lines = done.stdout.decode().splitlines()
    last = next(n for n, line in enumerate(lines) if line.startswith("2 epochs in"))
    return " ".join(lines[last:-2]), *lines[-2:]


def test_second_process_compiles_nothing_and_has_the_same_bits(tmp_path):
    first, second = run(tmp_path / "cache"), run(tmp_path / "cache")
    assert "compiled before" not in first[0] and "compiled before" in second[0]
    assert first[1] == second[1] and first[2] == second[2] == "child None None"
    changed = run(tmp_path / "cache", units=9)
    assert "compiled before" not in changed[0]


def test_last_line_says_that_the_import_came_too_late(tmp_path):
    before = "import tensorflow as tf; tf.config.list_physical_devices()"
    last, *_ = run(tmp_path / "cache", before=before)
    assert "import it first" in last and not (tmp_path / "cache").exists()
