"""Unisono: Keras 3 training on any tf.distribute strategy, with single-device results.

Names are imported when they are first used, so that the command line starts without TensorFlow.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import callbacks, distribute, mixed_precision, models, optimizers
    from . import trainer as trainer
    from .trainer import (
        Model,
        Sequential,
        adopt,
        clone_model,
        load_model,
        replica_step,
        rowwise,
        synchronize_batch_norm,
    )

_PACKAGES = ("callbacks", "distribute", "mixed_precision", "models", "optimizers", "ray", "trainer")

__all__ = [
    "Model",
    "Sequential",
    "__version__",
    "adopt",
    "callbacks",
    "clone_model",
    "distribute",
    "load_model",
    "mixed_precision",
    "models",
    "optimizers",
    "replica_step",
    "rowwise",
    "synchronize_batch_norm",
]

# TensorFlow reads flags when its devices are first listed.
_programs = importlib.import_module(".distribute.hardware.program_cache", __name__).PROGRAM_CACHE
_programs.begin()
if "tensorflow" in sys.modules or "TF_CONFIG" in os.environ:
    importlib.import_module(".distribute.workers.cluster_start", __name__).install()
if "keras" in sys.modules:  # layers may be called under `keras.RematScope` before anything of ours is used
    importlib.import_module(".distribute.rematerialized_calls", __name__)
    importlib.import_module(".distribute.attention.keras_attention", __name__)
    # `keras.distribution.initialize` comes first.
    importlib.import_module(".distribute.keras_processes", __name__)

if not TYPE_CHECKING:  # a type checker would take every name for one that is found here

    def __getattr__(name: str) -> Any:
        _programs.release_flags()
        if name in _PACKAGES:
            return importlib.import_module(f".{name}", __name__)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(".trainer", __name__), name)
        return value


def __dir__() -> list[str]:
    return __all__
