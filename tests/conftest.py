"""Four logical CPU devices stand for four accelerators in every test process."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras
import pytest
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)


def mirrored(num_replicas: int) -> tf.distribute.Strategy:
    """A MirroredStrategy of any size in one process.

    The default collectives abort when strategies of different sizes share a process; reducing on one device does not.
    """
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


@pytest.fixture(autouse=True)
def clean_keras_state():
    """Every test starts with Keras' own defaults and seeds, and leaves none of its own behind."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
