"""A plugin for pytest: strategies of tests compute on four parts of one GPU, instead of four logical CPU devices.

    PYTHONPATH=tests/helpers UNISONO_TEST_GPUS=1 NVIDIA_TF32_OVERRIDE=0 TF_FORCE_GPU_ALLOW_GROWTH=true \
        python -m pytest -p gpu_parts -n 8 -m "not long and not process" -o filterwarnings=default tests/single

UNISONO_TEST_DETERMINISTIC=1 adds deterministic operations, for tests that compare bits. Tests of what only CPUs do fail: the
measured choice of XLA, profiles that a forked process writes, trace counts, and bits without deterministic operations.
"""

import os
import re

import pytest

MEMORY = 1100  # MiB of each part
PARTS = 4


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        return  # the controller of `-n` only distributes tests
    import keras
    import tensorflow as tf
    from tensorflow.python.distribute import central_storage_strategy, mirrored_strategy, one_device_strategy

    part = tf.config.LogicalDeviceConfiguration(memory_limit=MEMORY)
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise pytest.UsageError("gpu_parts needs a GPU that TensorFlow finds, and UNISONO_TEST_GPUS=1")
    tf.config.set_logical_device_configuration(gpus[0], [part] * PARTS)
    if os.environ.get("UNISONO_TEST_DETERMINISTIC"):
        keras.utils.set_random_seed(1)
        tf.config.experimental.enable_op_determinism()
    for strategy in (
        mirrored_strategy.MirroredStrategy,
        one_device_strategy.OneDeviceStrategy,
        central_storage_strategy.CentralStorageStrategy,
    ):
        strategy.__init__ = _on_gpu(strategy.__init__, strategy is mirrored_strategy.MirroredStrategy)


def _on_gpu(original, reduces):
    """The constructor of a strategy, with the first argument's devices on the GPU; NCCL does not know parts of one GPU."""
    import tensorflow as tf

    def __init__(self, devices=None, *others, **options):
        if reduces and not others and options.get("cross_device_ops") is None:
            options["cross_device_ops"] = tf.distribute.ReductionToOneDevice()
        each = options.pop("device", devices)
        given = (
            [] if each is None else [[*map(_part, each)] if isinstance(each, list | tuple) else _part(each)]
        )
        original(self, *given, *others, **options)

    return __init__


def _part(device):
    return re.sub(r"(?i)^(?:/device:|/)?CPU:(\d+)$", r"GPU:\1", device)
