"""Mixed precision: policies, the loss scale that goes with them, and the search for numbers that are not finite."""

from ..optimizers.loss_scale.loss_scale_optimizer import LossScaleOptimizer
from .hardware import SlowPrecisionWarning, enable_tensor_float_32
from .non_finite import Diagnosis, NonFinite, batch_statistics, diagnose
from .policy import Policy, global_policy, policy_scope, set_global_policy
from .skipped_steps import LossScaleError, check_progress

__all__ = [
    "Diagnosis",
    "LossScaleError",
    "LossScaleOptimizer",
    "NonFinite",
    "Policy",
    "SlowPrecisionWarning",
    "batch_statistics",
    "check_progress",
    "diagnose",
    "enable_tensor_float_32",
    "global_policy",
    "policy_scope",
    "set_global_policy",
]


def __dir__() -> list[str]:
    return sorted(__all__)
