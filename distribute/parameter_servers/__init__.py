"""Variables on parameter servers, and the workers of a coordinator."""

from .strategy import ParameterServerStrategy
from .worker_pool import ParameterServerError

__all__ = ["ParameterServerError", "ParameterServerStrategy"]
