"""Policies and the loss scale."""

from .hardware import SlowPrecisionWarning
from .policy import Policy, global_policy, policy_scope, set_global_policy
from .tensor_float_32 import enable_tensor_float_32

__all__ = [
    "Policy",
    "SlowPrecisionWarning",
    "enable_tensor_float_32",
    "global_policy",
    "policy_scope",
    "set_global_policy",
]
