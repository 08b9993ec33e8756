"""Policies and the loss scale."""

from .diagnosis import Diagnosis, NonFinite, batch_statistics, diagnose
from .hardware import SlowPrecisionWarning
from .loss_scale_optimizer import LossScaleOptimizer
from .policy import Policy, check_policy_order, global_policy, policy_scope, set_global_policy
from .progress import LossScaleError, check_progress, step_logs
from .tensor_float_32 import enable_tensor_float_32
from .wrap import wrap_optimizer

__all__ = [
    "Diagnosis",
    "LossScaleError",
    "LossScaleOptimizer",
    "NonFinite",
    "Policy",
    "SlowPrecisionWarning",
    "batch_statistics",
    "check_policy_order",
    "check_progress",
    "diagnose",
    "enable_tensor_float_32",
    "global_policy",
    "policy_scope",
    "set_global_policy",
    "step_logs",
    "wrap_optimizer",
]
