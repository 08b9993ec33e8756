"""Error feedback: what a sum in 16 bits rounds away is carried over to the next step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import overwritten_by_gradient
from ...compat.keras_private.variables import raw_value
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...distribute.replicas import local_copy, num_replicas
from ..building import inner_optimizers
from .aggregators import HalfPrecisionAggregation
from .call_options import CallOptions
from .sparse_gradients import Pairs, is_sparse


def _carries(optimizer: Any) -> bool:
    aggregator = optimizer.gradient_aggregator
    return isinstance(aggregator, HalfPrecisionAggregation) and aggregator.carry_error


def create_errors(optimizer: Any, variables: Sequence[Any]) -> None:
    """Gives the optimizer an error for each dense float32 variable, where its aggregator carries them.

    They have the variable's shape, begin at 0, and each replica has its own. They are among the state that backups hold,
    but not among the optimizer's `variables`: in the file of a model, which has one copy of each, they would be wrong. On
    parameter servers, to which gradients are sent one by one, they raise a ValueError.
    """
    if not _carries(optimizer):
        return
    if on_parameter_servers(tf.distribute.get_strategy()):
        raise ValueError(
            "`carry_error=True` is invalid under ParameterServerStrategy, which sends gradients one by one: leave it out."
        )
    errors = {}
    for variable in variables:
        if not overwritten_by_gradient(variable) and tf.as_dtype(variable.dtype) == tf.float32:
            error = keras.Variable(
                tf.zeros(variable.shape),
                trainable=False,
                aggregation="sum",
                name=f"{variable.name}_carried_error",
            )
            error.differs_by_replica = True  # pyright: ignore[reportAttributeAccessIssue]
            errors[id(raw_value(variable))] = error
    optimizer.__dict__["carried_errors"] = errors


def errors_of(optimizer: Any) -> list[keras.Variable]:
    """The errors that an optimizer, and those inside of it, carry over."""
    if optimizer is None:
        return []
    each = [optimizer, *inner_optimizers(optimizer)]
    return [error for one in each for error in one.__dict__.get("carried_errors", {}).values()]


def with_errors(
    optimizer: Any, pairs: Pairs, options: CallOptions, scale: Any
) -> tuple[Pairs, Callable[..., None]]:
    """Adds to this replica's pairs what it carries.

    Replica r sends c_r = g_r + e_r in 16 bits: sent_r = round(c_r), e_r = c_r - sent_r, g = sum_r sent_r. The sums of all
    steps so far differ from the exact ones by the carried errors. The roundings of the sum's own additions are not carried.

    Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; Karimireddy et al. 2019, arXiv 1901.09847, algorithm 2.

    The pairs are of the loss times `scale`; errors are carried unscaled, and sparse gradients carry nothing.

    Returns the pairs; and `keep(finite=True)`, which keeps what the sum of these pairs rounds away, unless the step is
    skipped because the bool scalar `finite` is false. Context: replica.
    """
    if options.skip_aggregation or not _carries(optimizer):
        return pairs, lambda finite=True: None
    dtype, factor = optimizer.gradient_aggregator.dtype, tf.constant(1.0)
    for each in (optimizer.loss_scale_factor, scale):
        if each is not None:
            factor *= tf.cast(each, tf.float32)
    errors = [_error(optimizer, g, v) for g, v in pairs]
    sent = [(g if error is None else g + factor * error, v) for (g, v), error in zip(pairs, errors)]

    def keep(finite: Any = True) -> None:
        for (gradient, _), error in zip(sent, errors):
            if error is None:
                continue
            rounded = gradient if num_replicas() == 1 else tf.cast(tf.cast(gradient, dtype), gradient.dtype)
            new = (gradient - rounded) / factor
            new = tf.where(tf.math.is_finite(new), new, tf.zeros_like(new))
            error.assign(new if finite is True else tf.where(finite, new, error))

    return sent, keep


def _error(optimizer: Any, gradient: Any, variable: Any) -> Any:
    """This replica's error of a variable; None where its gradient carries none."""
    if overwritten_by_gradient(variable) or is_sparse(gradient) or gradient.dtype != tf.float32:
        return None
    errors = optimizer.__dict__.get("carried_errors")
    if errors is None:
        raise ValueError(
            f"`gradient_aggregator` of {optimizer.name} carries errors over, but was set after the optimizer was built: "
            "pass it to the constructor."
        )
    error = errors.get(id(raw_value(variable)))
    return None if error is None else local_copy(error)
