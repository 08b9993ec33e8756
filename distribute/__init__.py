"""Strategies, replicas, clusters, and the communication between them. Nothing here knows of models, losses or optimizers.

The names are imported on first use: the launcher is part of this package and must not load TensorFlow.
"""

# ruff: noqa: F401  (type checkers read the imports)
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .automatic import auto_strategy, cluster_resolver
    from .gathering import gather
    from .hardware.data_placement import keep_data_on
    from .hardware.device_memory import grow_gpu_memory
    from .hardware.devices import simulate_devices
    from .keras_distribution import strategy_of
    from .means import global_batch_size, global_mean
    from .parameter_servers import ParameterServerError, ParameterServerStrategy
    from .pipeline import Pipeline, StageError
    from .sharding.sharded import sharded
    from .workers.cluster import is_chief, num_workers, worker_index
    from .workers.launchers import register_launcher
    from .workers.peer_monitor import monitored_collective

_NAMES_OF = {
    "automatic": ("auto_strategy", "cluster_resolver"),
    "hardware.data_placement": ("keep_data_on",),
    "hardware.devices": ("simulate_devices",),
    "gathering": ("gather",),
    "keras_distribution": ("strategy_of",),
    "means": ("global_batch_size", "global_mean"),
    "hardware.device_memory": ("grow_gpu_memory",),
    "parameter_servers": ("ParameterServerError", "ParameterServerStrategy"),
    "pipeline": ("Pipeline", "StageError"),
    "sharding.sharded": ("sharded",),
    "workers.cluster": ("is_chief", "num_workers", "worker_index"),
    "workers.launchers": ("register_launcher",),
    "workers.peer_monitor": ("monitored_collective",),
}
__all__ = sorted(name for names in _NAMES_OF.values() for name in names)  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        for module, names in _NAMES_OF.items():
            if name in names:
                globals()[name] = value = getattr(importlib.import_module(f".{module}", __name__), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
