"""Four logical CPU devices stand for four accelerators in every test process."""

import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for what a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

import keras
import pytest
import tensorflow as tf
from forked import Forked

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)


@pytest.fixture(autouse=True)
def clean_keras_state():
    """Every test starts with Keras' own defaults and seeds, and leaves none of its own behind."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session")
def forked():
    """Programs in processes of their own; see `Forked`. One process that forks serves all tests of a test process."""
    with Forked() as forked:
        yield forked
