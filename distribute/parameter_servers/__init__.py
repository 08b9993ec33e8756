"""Variables on parameter servers, and the workers of a coordinator."""

from . import shards as _shards  # noqa: F401  (replaces functions of Keras and TensorFlow)
from .strategy import ParameterServerStrategy
from .worker_pool import ParameterServerError

__all__ = ["ParameterServerError", "ParameterServerStrategy"]
