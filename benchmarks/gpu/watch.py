"""Measures GPU utilization during a block with `nvidia-smi`."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from typing import Any

_EVERY_MS = 100


class Watch:
    """Samples utilization inside its block.

    Attributes:
        percent: mean of the higher half of the samples (the GPU idles while a program compiles); None without a GPU.
    """

    percent: float | None = None

    def __enter__(self) -> Watch:
        tool = shutil.which("nvidia-smi")
        self._process: Any = None
        if tool is not None:
            command = [
                tool,
                "--query-gpu=utilization.gpu",
                "--format=csv,noheader,nounits",
                f"-lms={_EVERY_MS}",
                "-i=0",
            ]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process is not None:
            self._process.terminate()
            output, _ = self._process.communicate(timeout=10)
            samples = sorted(int(line) for line in output.split() if line.isdecimal())
            if samples:
                self.percent = statistics.fmean(samples[len(samples) // 2 :])
