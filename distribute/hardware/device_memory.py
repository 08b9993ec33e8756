"""The memory of the devices of this process: total and free."""

from pathlib import Path

import tensorflow as tf

from ...compat.tensorflow_private.strategies import memory_limit
from ..arguments import show

STATUS = Path("/proc/self/status")


def grow_gpu_memory(enabled: bool = True) -> list[str]:
    """Let TensorFlow allocate the memory of every GPU on demand, instead of nearly all of it at the start.

    Use it on machines that several programs share, or to see a program's demand in `nvidia-smi`. Memory is not returned
    before the program ends, and fragments more. Call it before anything else uses TensorFlow's devices.

    Args:
        enabled: False allocates all of it at the start, as by default.

    Returns:
        The names of the GPUs; an empty list without GPUs.

    Raises:
        TypeError: `enabled` is not a bool.
        RuntimeError: the GPUs are in use already.

    Examples:
        >>> gpus = unisono.distribute.grow_gpu_memory()
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"`enabled` must be True or False. Received: {show(enabled)}")
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        try:
            tf.config.experimental.set_memory_growth(gpu, enabled)
        except RuntimeError:
            raise RuntimeError(
                "grow_gpu_memory() was called too late: TensorFlow already uses the GPUs. Call it before other uses of "
                "TensorFlow, or set TF_FORCE_GPU_ALLOW_GROWTH=true."
            ) from None
    return [gpu.name for gpu in gpus]


def free_memory(device: str) -> int | None:
    """Return the bytes that TensorFlow may still take on a GPU; None where that is not known."""
    limit = memory_limit(device)
    try:
        taken = tf.config.experimental.get_memory_info(device)["current"]
    except (ValueError, tf.errors.OpError):
        return None
    return None if limit is None else max(0, limit - taken)


def bytes_in(file: Path, name: str) -> int:
    """Return the bytes that a file of proc(5) states under a name, as in `VmRSS:  1234 kB`."""
    line = next(line for line in file.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def in_words(size: float) -> str:
    """Return a number of bytes as readable text."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
