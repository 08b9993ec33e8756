"""From a loss to (gradient, variable) pairs."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ..distribute.parameter_servers.shards import gradient


def compute_gradients(
    optimizer: Any, loss: Any, var_list: Any, grad_loss: Any, tape: Any
) -> list[tuple[Any, Any]]:
    """The gradients of `optimizer.scale_loss(loss)`; arguments as `Optimizer.minimize`. Context: replica."""
    if tape is None and not callable(loss):
        raise ValueError(
            "`tape` is missing: if `loss` is a tensor, pass the tf.GradientTape that recorded it, "
            f"or pass a function that computes the loss. Received: loss={loss!r}"
        )
    if var_list is None:
        raise ValueError("`var_list` must be variables, such as `model.trainable_variables`. Received: None")
    tape = tf.GradientTape() if tape is None else tape
    if callable(loss):
        with tape:
            if not callable(var_list):
                for variable in tf.nest.flatten(var_list):
                    tape.watch(variable.value if isinstance(variable, keras.Variable) else variable)
            value = optimizer.scale_loss(loss())
    else:
        value = loss
        plain = type(optimizer).scale_loss is keras.optimizers.Optimizer.scale_loss
        if not plain or optimizer.loss_scale_factor is not None:
            with tape:
                value = optimizer.scale_loss(loss)
    variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
    gradients = gradient(tape, value, variables, grad_loss)
    return list(zip(gradients, variables))
