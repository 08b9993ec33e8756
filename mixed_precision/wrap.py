"""Which optimizer a model with a policy needs."""

from __future__ import annotations

from typing import Any

import keras

from .. import optimizers
from ..compat.layers import layers_of
from ..compat.optimizers import scope_of
from .loss_scale_optimizer import LossScaleOptimizer
from .policy import LossScale, Policy, loss_scale_of


def wrap_optimizer(optimizer: Any, policy: Policy | keras.Model, auto_scale_loss: bool = True) -> Any:
    """The optimizer that `compile` uses: `optimizer` itself, or behind a loss scale.

    Args:
        optimizer: a Keras optimizer, or None. An instance of plain Keras' `LossScaleOptimizer` becomes ours, in place.
        policy: the model, or the policy it has. A model is scaled if it or any layer in it computes in float16.
        auto_scale_loss: False leaves the loss as it is.

    Returns:
        `optimizer`, or a `LossScaleOptimizer` around it: dynamic, or fixed where `set_global_policy` was given a number.

    Context: host, under the strategy of the model.
    """
    if optimizer is None:
        return None
    optimizer = optimizers.adopt(optimizer)
    if isinstance(optimizer, LossScaleOptimizer) or not auto_scale_loss:
        return optimizer
    loss_scale = _loss_scale(policy)
    if loss_scale is None:
        return optimizer
    with scope_of(optimizer):
        if loss_scale == "dynamic":
            return LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
        return LossScaleOptimizer(
            optimizer, loss_scale, min_scale=loss_scale, max_scale=loss_scale, name="loss_scale_optimizer"
        )


def _loss_scale(policy: Policy | keras.Model) -> LossScale:
    """The first loss scale that the model's policy or one of its layers' asks for."""
    if not isinstance(policy, keras.Model):
        return loss_scale_of(policy)
    policies = [policy.dtype_policy, *(layer.dtype_policy for layer in layers_of(policy)[1:])]
    computing = (each for each in policies if each.compute_dtype == "float16")
    first = next(computing, None)
    return None if first is None else loss_scale_of(first)
