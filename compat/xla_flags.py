"""The flags of TensorFlow's two caches of compiled programs, in the environment until TensorFlow has read them.

Needs no TensorFlow. Both caches are in the memory of the process; `distribute/hardware/program_cache.py` says why.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from .versions import LOG_LEVELS, XLA_CACHE_FLAGS, find_version

PROGRAMS, TUNED = "ram://unisono-programs", "ram://unisono-tuned"
_CPU_ALONE = "--tf_xla_persistent_cache_device_types=CPU"
_FLAGS = {
    "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={PROGRAMS}",
    "XLA_FLAGS": f"--xla_gpu_per_fusion_autotune_cache_dir={TUNED}",
}
_added: dict[str, str] = {}  # the values that `add_flags` has set


def own_value(environ: MutableMapping[str, str], name: str) -> str | None:
    """Return the value of a variable without our flags, also where a parent process has added them; None: not set."""
    ours = {_CPU_ALONE, *_FLAGS.values()}
    left = " ".join(word for word in environ.get(name, "").split(" ") if word not in ours)
    return left if left or (name in environ and not environ[name]) else None


def add_flags(environ: MutableMapping[str, str], gpus: bool) -> str:
    """Add the flags to what the user has set, the one of `gpus` if wanted; return why not, or "".

    TensorFlow ends the process at an unknown flag, so only versions of the table get them.
    """
    restore_flags(environ)
    version = find_version("tensorflow")
    if not version.startswith(XLA_CACHE_FLAGS):
        return f"the flags of TensorFlow {version} are not known"
    for name, flag in list(_FLAGS.items())[: 1 + gpus]:
        users = environ.get(name, "")
        if flag.partition("=")[0] in users:
            return f"{name} names a folder of your own"
        if users and not users.lstrip().startswith("-"):
            return f"{name} names a file with flags"
        _added[name] = " ".join(
            filter(None, (users, flag, _CPU_ALONE * (name == "TF_XLA_FLAGS" and not gpus)))
        )
    environ.update(_added)
    return ""


def restore_flags(environ: MutableMapping[str, str]) -> bool:
    """Give the user's values back, for child processes; return whether ours were in the environment until now."""
    intact = all(environ.get(name) == value for name, value in _added.items())
    for name in _FLAGS:
        if (users := own_value(environ, name)) is None:
            environ.pop(name, None)
        else:
            environ[name] = users
    _added.clear()
    return intact


def flags_are_read() -> bool:
    """Return whether TensorFlow has read its flags in this process: it does so when its devices are first listed."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    return getattr(context, "_physical_devices", None) is not None


@contextlib.contextmanager
def hide_log() -> Iterator[None]:
    """Hide errors that TensorFlow logs, but does not raise, for each program that it loads correctly from its cache.

    It first reads an entry as text, and it takes two preferences of its compiler for features that the CPU lacks.
    """
    namespace = LOG_LEVELS.get(find_version("tensorflow")[:5])
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, AttributeError):
            package = Path(sys.modules["tensorflow"].__file__ or "").parent
            library: Any = ctypes.CDLL(str(package / "libtensorflow_framework.so.2"))
            level = getattr(library, f"_ZN4absl{namespace}11MinLogLevelEv")()
            set_level = getattr(library, f"_ZN4absl{namespace}14SetMinLogLevelENS0_18LogSeverityAtLeastE")
            stack.callback(set_level, level)
            set_level(max(level, 3))  # fatal ones alone
        yield
