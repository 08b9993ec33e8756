"""The peak memory of a device of this process."""

from pathlib import Path

import tensorflow as tf

from unisono.distribute.hardware.device_memory import STATUS, bytes_in

CLEAR = Path("/proc/self/clear_refs")


class PeakMemory:
    """The peak memory of one device of this process. All CPUs count as one device, with the memory of the process.

    Raises a RuntimeError if the operating system does not report a process's memory.
    """

    def __init__(self, devices: list[str]) -> None:
        names = [tf.DeviceSpec.from_string(device) for device in devices]
        self._gpus = sorted({f"GPU:{name.device_index}" for name in names if name.device_type == "GPU"})
        self.reset()

    def reset(self) -> None:
        """Restart the measurement."""
        for gpu in self._gpus:
            tf.config.experimental.reset_memory_stats(gpu)
        if not self._gpus:
            try:
                CLEAR.write_text("5")
            except OSError as error:
                raise RuntimeError(
                    f"The memory of a process cannot be measured here ({error}): use Linux, or a GPU."
                ) from error

    def most(self) -> int:
        """Return the peak bytes since `reset`, of the device with the highest peak."""
        if self._gpus:
            return max(tf.config.experimental.get_memory_info(gpu)["peak"] for gpu in self._gpus)
        return bytes_in(STATUS, "VmHWM")
