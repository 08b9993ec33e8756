"""The devices of this process, and those of connected processes: created, and identified by name."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_private.strategies import current_device
from ..arguments import show, whole_number
from ..environment import replicas_per_worker

_MOST = 4096  # devices of one process: TensorFlow makes threads for each
# LLVM aborts below PTX 8.6 for 10.0, and below 8.7 for 12.0; the first CUDA with both.
_NEWER_CARDS, _THEIR_CUDA = (10, 0), (12, 8)
_THIS_PROCESS = "localhost"  # the job of device names without one


def simulate_devices(count: int) -> list[str]:
    """Split the CPU into `count` logical devices, to try several replicas on a machine without accelerators.

    Call it before anything else uses TensorFlow's devices: they cannot be changed later. A second call with the same
    count does nothing.

    Args:
        count: int >= 1.

    Returns:
        The names of the devices, for `tf.distribute.MirroredStrategy(names)`.

    Raises:
        ValueError: `count` is not a positive whole number.
        RuntimeError: the devices are in use already.

    Examples:
        >>> strategy = tf.distribute.MirroredStrategy(unisono.distribute.simulate_devices(4))
        >>> strategy.num_replicas_in_sync
        4
    """
    count = whole_number("count", count)
    if count > _MOST:
        raise ValueError(f"`count` must be a whole number of at most {_MOST}. Received: {count}")
    cpu = tf.config.list_physical_devices("CPU")[0]
    wanted = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    try:
        tf.config.set_logical_device_configuration(cpu, wanted)
    except RuntimeError:
        found = len(tf.config.list_logical_devices("CPU"))
        if found != count:
            raise RuntimeError(
                f"`count` ({count}) can no longer be set: TensorFlow already uses {found} CPU device(s). Call "
                f"simulate_devices before anything else that uses TensorFlow."
            ) from None
    return [f"/device:CPU:{index}" for index in range(count)]


def simulate_replicas() -> None:
    """Create one device for each replica that the launcher requested, on a machine without GPUs."""
    if replicas_per_worker() > 1 and not tf.config.list_physical_devices("GPU"):
        simulate_devices(replicas_per_worker())


def gpu_details() -> list[dict[str, Any]]:
    """Return what TensorFlow knows of each visible GPU; starts no device."""
    return [*map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))]


def why_xla_aborts() -> str | None:
    """Return why XLA would end the process on a visible GPU, and what helps; None where it can compile for each."""
    built = tf.sysconfig.get_build_info().get("cuda_version") or ""
    newest = max([each.get("compute_capability") or (0, 0) for each in gpu_details()], default=(0, 0))
    if newest < _NEWER_CARDS or not built or tuple(map(int, built.split(".")[:2])) >= _THEIR_CUDA:
        return None
    return (
        f"XLA of TensorFlow {tf.__version__}, which is built with CUDA {built}, cannot compile for compute capability "
        f"{newest[0]}.{newest[1]}: install a TensorFlow built with CUDA {_THEIR_CUDA[0]}.{_THEIR_CUDA[1]} or newer"
    )


@functools.cache  # called for each operation of a step
def is_gpu(device: str) -> bool:
    """Return whether a device name belongs to a GPU."""
    return tf.DeviceSpec.from_string(device or "CPU:0").device_type == "GPU"


def computes_on_gpu() -> bool:
    """Return whether operations created here by this replica run on a GPU. Context: replica."""
    return runs_on_gpu(current_device())


def runs_on_gpu(device: str) -> bool:
    """Return whether an operation with this requested device, or with none, runs on a GPU."""
    return is_gpu(device) if device else bool(tf.config.list_logical_devices("GPU"))


def wait_for_accelerators() -> None:
    """Wait until GPUs, which run ahead of Python, have finished all work: for reading a clock."""
    if tf.config.list_physical_devices("GPU"):
        tf.test.experimental.sync_devices()


def resolve_devices(devices: Sequence[str]) -> list[str]:
    """Return the full names of devices: "/job:localhost/replica:0/task:0/device:GPU:0" for "GPU:0" (of this process).

    A ValueError for a device that does not exist lists those that do.
    """
    if not isinstance(devices, list | tuple) or not devices:
        raise ValueError(
            f'`devices` must be a list of at least one name such as "GPU:0". Received: {show(devices)}'
        )
    existing, found = _find_existing(), []
    for name in devices:
        try:
            wanted = _full(tf.DeviceSpec.from_string(name))
        except (ValueError, AttributeError, TypeError):
            wanted = None
        if wanted is None or wanted not in existing:
            raise ValueError(
                f"`devices` names {show(name)}, which does not exist: there are {[e.to_string() for e in existing]}; for "
                "devices of other processes, start them with `python -m unisono launch --stages K`."
            )
        found.append(wanted.to_string())
    return found


def check_exist(argument: str, devices: Sequence[str]) -> None:
    """Raise a ValueError for devices of this process that do not exist: TensorFlow would silently use the CPU instead."""
    for name in devices:
        spec = tf.DeviceSpec.from_string(name)
        if spec.job in (None, _THIS_PROCESS) and spec.device_type and _full(spec) not in _find_existing():
            here = ", ".join(device.name for device in tf.config.list_logical_devices())
            raise ValueError(f"`{argument}` names {name!r}, which does not exist: there are {here}.")


def _find_existing() -> list[tf.DeviceSpec]:
    return [_full(tf.DeviceSpec.from_string(device.name)) for device in tf.config.list_logical_devices()]


def _full(spec: tf.DeviceSpec) -> tf.DeviceSpec:
    return spec.replace(
        job=spec.job or _THIS_PROCESS,
        replica=spec.replica or 0,
        task=spec.task or 0,
        device_index=spec.device_index or 0,
    )
