"""What code that is compiled on this machine depends on, read from files: no device is started."""

import contextlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from ...compat.versions import find_version
from ...compat.xla_flags import own_value

_CPU_FIELDS = {
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
}  # fmt: skip
_LIBRARIES = ("nvidia-cudnn-cu12", "nvidia-cublas-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12")
_VARIABLES = (
    "TF_ENABLE_ONEDNN_OPTS",
    "NVIDIA_TF32_OVERRIDE",
    "TF_DETERMINISTIC_OPS",
    "TF_CUDNN_DETERMINISTIC",
    "LD_LIBRARY_PATH",
)


def size_of_tensorflow() -> int | None:
    """Return the bytes of TensorFlow's library, by which builds of one version differ; None where it is not found."""
    with contextlib.suppress(ImportError, AttributeError, TypeError, ValueError, OSError):
        found = importlib.util.find_spec("tensorflow")
        return os.path.getsize(Path(found.origin).with_name("libtensorflow_cc.so.2"))  # pyright: ignore
    return None


def describe_cpu(path: str = "/proc/cpuinfo") -> list[str]:
    """Return the model and the features of all processors; [] where they cannot be read."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.partition(":")[0].strip() in _CPU_FIELDS})


def describe_cards(folder: str = "/proc/driver/nvidia") -> list[str]:
    """Return the driver, the libraries and the one model of all cards; [] where there is none, or anything is not known."""
    try:
        files = sorted(Path(folder, "gpus").glob("*/information"))
        lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
        driver = Path(folder, "version").read_text(errors="replace").partition("\n")[0]
    except OSError:
        return []
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("Model:")}
    libraries = [f"{name} {find_version(name)}" for name in _LIBRARIES]
    # A program for one model of cards may be loaded for another one.
    if len(models) != 1 or "Unknown" in models or libraries[0].endswith("not installed"):
        return []
    return [driver, *libraries, *models]


def describe_flags(environ: Mapping[str, str]) -> list[str]:
    """Return the settings of the environment that change code, and the number of processors for which it is divided."""
    users = [f"{name} {own_value(dict(environ), name) or ''}" for name in ("TF_XLA_FLAGS", "XLA_FLAGS")]
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [*users, *(f"{name} {environ.get(name, '')}" for name in _VARIABLES), f"{processors} processors"]
