"""Checks of an optimizer's arguments and of the results of custom stages, before any variable changes."""

import dataclasses
import warnings
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ..compat.keras_private.optimizers import trained_variables
from ..compat.side_table import SideTable
from ..compat.wrong_use import WrongUse
from ..distribute.arguments import show, takes_arguments
from .stages.call_options import current_options

Pairs = list[tuple[Any, Any]]  # gradients and their variables
GradsAndVars = Iterable[tuple[Any, Any]]


def require_built(optimizer: Any, count: int) -> list[Any]:
    """Return the variables that an optimizer was built with; raise a ValueError if it was not, or not with `count`."""
    if not optimizer.built:
        raise WrongUse(
            "`trainable_variables` is missing and the optimizer is not built: pass the variables, or call "
            "`optimizer.build(trainable_variables)` first."
        )
    variables = trained_variables(optimizer)
    if count != len(variables):
        raise WrongUse(
            f"`grads` must have one gradient for each of the {len(variables)} variables that the optimizer was built "
            f"with. Received: {count}"
        )
    return variables


_RULE = "`grads_and_vars` must be (gradient, variable) pairs, as in `zip(gradients, variables)`"


def as_pairs(grads_and_vars: Any) -> Pairs:
    """Return the argument as a list of pairs; raise a ValueError for anything else."""
    try:
        pairs = list(grads_and_vars)
    except TypeError as error:
        raise WrongUse(f"{_RULE}. Received: {show(grads_and_vars)}") from error
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise WrongUse(f"{_RULE}. Received: {show(pair)} in {show(pairs)}")
    return [(gradient, variable) for gradient, variable in pairs]


def _fits(variable: Any, shape: Any) -> bool:
    """Return whether a gradient of this shape can be a variable's; a step that passes parts knows their shapes."""
    known = id(variable) in current_options().summed
    return known or tf.TensorShape(variable.shape).is_compatible_with(shape)


def check_pairs(grads_and_vars: Any) -> Pairs:
    """Return the argument as pairs; reject anything else, a repeated variable, or a gradient of a wrong shape."""
    pairs, seen = as_pairs(grads_and_vars), set()
    for gradient, variable in pairs:
        if isinstance(gradient, str) or not hasattr(variable, "shape") or isinstance(variable, tf.Tensor):
            raise WrongUse(f"{_RULE}. Received: {show(gradient)} with the variable {show(variable)}")
        shape = getattr(gradient, "shape", None)
        if shape is not None and not _fits(variable, shape):
            raise WrongUse(
                f"`grads_and_vars` has a gradient of shape {tuple(shape)} for {name_of(variable)} of shape "
                f"{tuple(variable.shape)}: pair each variable with its own gradient."
            )
        if id(variable) in seen:
            raise WrongUse(
                f"`grads_and_vars` contains the variable {name_of(variable)} twice: add its gradients up first."
            )
        seen.add(id(variable))
    return pairs


def skips_aggregation(
    skip_gradients_aggregation: bool, experimental_aggregate_gradients: bool | None
) -> bool:
    """Return the meaning of the two arguments of `apply_gradients`; raise a ValueError if they contradict."""
    if experimental_aggregate_gradients is None:
        return bool(skip_gradients_aggregation)
    if skip_gradients_aggregation and experimental_aggregate_gradients:
        raise WrongUse(
            "`skip_gradients_aggregation=True` contradicts `experimental_aggregate_gradients=True`, the old argument "
            "with the opposite meaning: pass only one."
        )
    return not experimental_aggregate_gradients


def check_stage(stage: Any, argument: str) -> None:
    """Raise a ValueError if `stage` cannot be a stage."""
    if isinstance(stage, type):
        raise WrongUse(f"`{argument}` takes an instance: pass {stage.__name__}(...). Received: {show(stage)}")
    if not callable(stage) or not takes_arguments(stage, 1):
        raise WrongUse(
            f"`{argument}` takes functions from (gradient, variable) pairs to such pairs. Received: {show(stage)}"
        )


def check_stages(stages: Any, argument: str) -> list[Any]:
    """Return several stages, one or None as a list; raise a ValueError if one cannot be a stage."""
    if stages is None:
        return []
    several = (
        list(stages) if isinstance(stages, Iterable) and not isinstance(stages, str | dict) else [stages]
    )
    for stage in several:
        check_stage(stage, argument)
    return several


def with_gradients(optimizer: Any, pairs: Pairs) -> Pairs:
    """Return the pairs that have a gradient; the others are listed in one warning. Raise a ValueError if no pair has one."""
    missing = [name_of(v) for g, v in pairs if g is None]
    if len(missing) == len(pairs):
        raise WrongUse(
            f"No gradients provided for any variable. Received: {missing}; "
            "compute the loss from these variables inside the tape."
        )
    if missing and missing not in record_of(optimizer).warned_missing:
        record_of(optimizer).warned_missing.append(missing)
        warnings.warn(
            f"Gradients do not exist for variables {missing} when minimizing the loss: they are not updated. "
            "If you use `model.compile()`, did you forget the `loss` argument?",
            stacklevel=5,
        )
    return [(as_gradient(g), v) for g, v in pairs if g is not None]


def as_gradient(gradient: Any) -> Any:
    """Return the gradient as a tensor, `tf.IndexedSlices` or a distributed value."""
    if isinstance(gradient, tf.IndexedSlices | tf.distribute.DistributedValues):
        return gradient
    return tf.convert_to_tensor(gradient)


def same_variables(stage: Any, argument: str, before: Pairs, after: Any) -> Pairs:
    """Return what the user's `stage` returned, in the order of its input; a ValueError says what is wrong with it."""
    name = getattr(stage, "__name__", None) or type(stage).__name__
    rule = f"`{argument}`: {name} must return one (gradient, variable) pair for each pair that it gets"
    if after is None:
        raise WrongUse(f"{rule}. Received None: is a `return` missing?")
    try:
        returned = [(g, v) for g, v in after]
    except (TypeError, ValueError) as error:
        raise WrongUse(f"{rule}. Received: {show(after)}") from error
    if len(returned) != len(before):
        raise WrongUse(f"{rule}. Given {len(before)} pairs, it returned {len(returned)}.")
    gradients, result = {id(v): g for g, v in returned}, []
    for _, variable in before:
        if id(variable) not in gradients:
            names = [name_of(v) for _, v in returned]
            raise WrongUse(f"{rule}. It lost the variable {name_of(variable)} and returned {names}.")
        if gradients[id(variable)] is None:
            raise WrongUse(f"{rule}. For the variable {name_of(variable)} it returned None as gradient.")
        gradient = as_gradient(gradients[id(variable)])
        sparse = isinstance(gradient, tf.IndexedSlices)
        if not sparse and not _fits(variable, gradient.shape):
            raise WrongUse(
                f"{rule}. For the variable {name_of(variable)} of shape {variable.shape} it returned "
                f"a gradient of shape {gradient.shape}."
            )
        result.append((gradient, variable))
    return result


def name_of(variable: Any) -> str:
    """Return the variable's path, or its name where it has none."""
    return getattr(variable, "path", None) or variable.name


@dataclasses.dataclass
class OptimizerRecord:
    """What the stages of an optimizer remember in this process."""

    # Variables that had a gradient, by key.
    accumulated: dict[Any, Any] = dataclasses.field(default_factory=dict)
    # Variables without one, in warnings.
    warned_missing: list[list[str]] = dataclasses.field(default_factory=list)
    # By replica: what `aggregate_gradients` remembers where no step is traced, see `aggregated_gradients.py`.
    aggregated: dict[int, dict[int, Any]] = dataclasses.field(default_factory=dict)


record_of = SideTable(OptimizerRecord).of
