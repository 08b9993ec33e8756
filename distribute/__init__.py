"""Strategies, replicas, clusters: how numbers travel. Nothing here knows of models, losses or optimizers.

The names are imported when they are first used: the launcher is part of this package and must not load TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .automatic import auto_strategy as auto_strategy
    from .automatic import cluster_resolver as cluster_resolver
    from .devices import simulate_devices as simulate_devices
    from .means import global_batch_size as global_batch_size
    from .means import global_mean as global_mean
    from .parameter_servers import ParameterServerError as ParameterServerError
    from .parameter_servers import ParameterServerStrategy as ParameterServerStrategy
    from .pipeline import Pipeline as Pipeline
    from .pipeline import StageError as StageError
    from .workers.cluster import is_chief as is_chief
    from .workers.cluster import num_workers as num_workers
    from .workers.cluster import worker_index as worker_index
    from .workers.peer_watch import meeting as meeting

_MODULE_OF = {
    "ParameterServerError": "parameter_servers",
    "ParameterServerStrategy": "parameter_servers",
    "Pipeline": "pipeline",
    "StageError": "pipeline",
    "auto_strategy": "automatic",
    "cluster_resolver": "automatic",
    "global_batch_size": "means",
    "global_mean": "means",
    "is_chief": "workers.cluster",
    "meeting": "workers.peer_watch",
    "num_workers": "workers.cluster",
    "simulate_devices": "devices",
    "worker_index": "workers.cluster",
}

__all__ = [
    "ParameterServerError",
    "ParameterServerStrategy",
    "Pipeline",
    "StageError",
    "auto_strategy",
    "cluster_resolver",
    "global_batch_size",
    "global_mean",
    "is_chief",
    "meeting",
    "num_workers",
    "simulate_devices",
    "worker_index",
]


if not TYPE_CHECKING:  # a type checker would take every name for one that is found here

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
