"""The devices of the tests on GPUs: all GPUs, one GPU split into two logical ones, or logical CPU devices instead.

UNISONO_TEST_GPUS=1 makes the GPUs visible to the tests; =cpu uses logical CPU devices instead, treated as GPUs.
Otherwise every test is skipped.
"""

import os
import subprocess

import pytest

ASKED = os.environ.get("UNISONO_TEST_GPUS", "")
STAND_INS = ["/device:CPU:2", "/device:CPU:3"]
_KNOWS_GPUS = (
    "unisono.distribute.hardware.data_placement",
    "unisono.distribute.replicas",
    "unisono.optimizers.stages.user_code",
    "unisono.trainer.run.xla.xla_rule",
    "unisono.trainer.run.xla.xla_loops",
)


def pytest_configure():
    """Splits a single GPU into two logical ones with half of its free memory each."""
    if ASKED not in ("", "cpu"):
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        if len(gpus) == 1:
            listing = subprocess.run(
                ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
            ).stdout
            half = tf.config.LogicalDeviceConfiguration(memory_limit=int(int(listing.split()[0]) * 0.4))
            tf.config.set_logical_device_configuration(gpus[0], [half] * 2)


def pytest_collection_modifyitems(items):
    reason = "the tests use no GPU: set UNISONO_TEST_GPUS=1, or =cpu for logical CPU devices instead"
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)
            if not ASKED:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def gpus(monkeypatch):
    """The names of two or more devices."""
    import importlib

    import tensorflow as tf

    if ASKED == "cpu":
        for name in _KNOWS_GPUS:
            monkeypatch.setattr(
                importlib.import_module(name), "is_gpu", lambda device: device[-1:] in ("2", "3")
            )
        return STAND_INS
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    if len(names) < 2:
        pytest.skip(f"two devices are needed, and TensorFlow finds {names or 'no GPU'}")
    return names


@pytest.fixture
def physical():
    """Physical GPUs; the test is skipped if there are fewer than it needs."""
    import tensorflow as tf

    def at_least(count):
        found = tf.config.list_physical_devices("GPU")
        if len(found) < count:
            pytest.skip(f"{count} physical GPU(s) are needed, and there are {len(found)}")
        return found

    return at_least
