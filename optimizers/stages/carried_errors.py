"""What a sum in 16 bits rounds away, carried over to the next step: error feedback.

Each replica r sends c_r = g_r + e_r in 16 bits, and keeps what that leaves out:

    sent_r = round(c_r)        e_r = c_r - sent_r        g = sum_r sent_r

So nothing that a replica rounds away is lost: the sums of all steps so far differ from the exact ones by the errors that
are carried now, at most half a unit in the last place of what was sent last. What the additions of the sum itself round,
in 16 bits, is not carried.

Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD",
algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.optimizers import overwritten_by_gradient
from ...compat.variables import raw_value
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...distribute.replicas import local_copy, num_replicas
from ..building import inner_optimizers
from ..call_options import CallOptions
from .aggregators import HalfPrecisionAggregation, Pairs, weighted


def carries(optimizer: Any) -> bool:
    """Whether the aggregator of an optimizer carries errors over."""
    aggregator = optimizer.gradient_aggregator
    return isinstance(aggregator, HalfPrecisionAggregation) and aggregator.carry_error


def create_errors(optimizer: Any, variables: Sequence[Any]) -> None:
    """Gives the optimizer an error for each dense float32 variable, where its aggregator carries them.

    They have the variable's shape, begin at 0, and each replica has its own. They are among the state that backups hold, but
    not among the optimizer's `variables`: in the file of a model, which has one copy of each, they would be wrong.

    Raises:
        ValueError: the variables are on parameter servers, to which gradients are sent one by one.
    """
    if not carries(optimizer):
        return
    if on_parameter_servers(tf.distribute.get_strategy()):
        raise ValueError(
            "`carry_error=True` needs replicas that train in step: leave it out under ParameterServerStrategy."
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
    optimizer: Any, pairs: Pairs, options: CallOptions, weight: Any, scale: Any
) -> tuple[Pairs, Any]:
    """This replica's pairs with what it carries, and the weight that is still to be applied to them.

    Args:
        optimizer: built.
        pairs: gradients of the loss times `scale`; sparse ones carry nothing.
        options: of the call.
        weight: scalar that this replica's gradients are multiplied with; None: nothing.
        scale: scalar or None; errors are carried unscaled.

    Context: replica.
    """
    if options.skip_aggregation or not carries(optimizer):
        return pairs, weight
    factor = _factor(optimizer, scale)

    def joined(gradient: Any, variable: Any) -> Any:
        if overwritten_by_gradient(variable):
            return gradient
        mine = gradient if weight is None else weighted(gradient, weight)
        error = _error(optimizer, gradient, variable)
        return mine if error is None else mine + factor * error

    return [(joined(g, v), v) for g, v in pairs], None


def carry_on(optimizer: Any, sent: Pairs, options: CallOptions, scale: Any, verdict: Any = True) -> None:
    """Keeps what the sum of these pairs has rounded away, where the step is not skipped.

    Args:
        optimizer: built.
        sent: what `with_errors` gave.
        options: of the call.
        scale: scalar or None.
        verdict: True, or bool scalar tensor.

    Context: replica.
    """
    if options.skip_aggregation or not carries(optimizer):
        return
    dtype, factor = optimizer.gradient_aggregator.dtype, _factor(optimizer, scale)
    for gradient, variable in sent:
        error = _error(optimizer, gradient, variable)
        if error is None:
            continue
        rounded = gradient if num_replicas() == 1 else tf.cast(tf.cast(gradient, dtype), gradient.dtype)
        new = (gradient - rounded) / factor
        new = tf.where(tf.math.is_finite(new), new, tf.zeros_like(new))
        error.assign(new if verdict is True else tf.where(verdict, new, error))


def _error(optimizer: Any, gradient: Any, variable: Any) -> Any:
    """This replica's error of a variable; None where its gradient carries none."""
    if isinstance(gradient, tf.IndexedSlices) or gradient.dtype != tf.float32:
        return None
    errors = optimizer.__dict__.get("carried_errors")
    if errors is None:
        raise ValueError(
            f"`gradient_aggregator` of {optimizer.name} carries errors over, but was given when the optimizer was built "
            "already: give it to the constructor."
        )
    error = errors.get(id(raw_value(variable)))
    return None if error is None else local_copy(error)


def _factor(optimizer: Any, scale: Any) -> tf.Tensor:
    """What the gradients are multiplied with, float32 scalar."""
    factor = tf.constant(1.0)
    for each in (optimizer.loss_scale_factor, scale):
        if each is not None:
            factor *= tf.cast(each, tf.float32)
    return factor
