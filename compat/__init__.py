"""Every private name of Keras and TensorFlow, and the functions of Keras that are replaced. Nothing else touches either.

All names are checked here, when anything of this package is first imported.
"""

from .versions import missing_attributes as _missing_attributes
from .versions import unsupported as _unsupported

try:
    from . import (
        callbacks,
        clusters,
        datasets,
        functional,
        graphs,
        layers,
        optimizers,
        parameter_servers,
        random_state,
        replaced,
        serialization,
        strategies,
        training,
        variables,
    )

    _missing = _missing_attributes()
except (ImportError, AttributeError, KeyError) as _error:
    raise ImportError(_unsupported(f"a name that it needs ({_error})")) from _error
if _missing:
    raise ImportError(_unsupported(", ".join(_missing)))

__all__ = [
    "callbacks",
    "clusters",
    "datasets",
    "functional",
    "graphs",
    "layers",
    "optimizers",
    "parameter_servers",
    "random_state",
    "replaced",
    "serialization",
    "strategies",
    "training",
    "variables",
]
