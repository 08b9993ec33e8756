"""Warnings at the start of a fit whose resumed run could not have the same bits."""

from __future__ import annotations

import warnings
from typing import Any

from ...compat.random_operations import drawing_operations
from ...compat.variables import raw_value
from ..fit_state import FitState
from ..trained_model import CompiledModel
from . import variable_state
from .callback_state import named
from .generators import found_generators

_ONE_WAY = (
    "The training data comes from a Python generator, which cannot be rewound: a resumed training draws from a new "
    "generator and skips the batches already used, which is right only if the new one yields the same batches. Use a "
    "keras.utils.PyDataset or a tf.data.Dataset to resume bit-for-bit in any case."
)


def warn_if_inexact(model: CompiledModel, fit_state: FitState) -> None:
    """Warns of the first reason for which this training cannot be resumed exactly, if there is one."""
    reasons = [_why_inexact(fit_state.source), _why_inexact(fit_state.validation)]
    if reasons[1]:
        reasons[1] = reasons[1].replace("x is", "validation_data is", 1)
    others = [_cut(fit_state.validation), _drawn_by_several(model, fit_state)]
    found = next(filter(None, [*reasons, *others]), None)
    if found:
        warnings.warn(found, stacklevel=2)


def warn_of_own_states(model: CompiledModel) -> None:
    """Warns where the steps, which have been compiled, draw from random operations that nothing can save."""
    graph = getattr(model.train_function, "graph", lambda: None)()
    names = [] if graph is None else drawing_operations(graph)
    if names:
        warnings.warn(
            f"The model draws random numbers by an operation whose state TensorFlow keeps to itself ({names[0]}): a "
            "resumed training cannot be exact; draw with keras.random and a SeedGenerator, or from a tf.random.Generator.",
            stacklevel=2,
        )


def _why_inexact(source: Any) -> str | None:
    if source is None:
        return None
    return getattr(source, "inexact", None) if getattr(source, "rewinds", True) else _ONE_WAY


def _cut(validation: Any) -> str | None:
    """The sentence where every pass of the validation leaves a pipeline that has drawn further than it is read."""
    steps = validation.calendar.given_steps if getattr(validation, "owned", ()) else None
    if steps is None:
        return None
    return (
        f"validation_data is a tf.data pipeline that draws from a generator, and validation_steps ({steps}) ends each pass "
        "while it is read ahead: a resumed training cannot be exact; leave validation_steps out, and use Dataset.take."
    )


def _drawn_by_several(model: CompiledModel, fit_state: FitState) -> str | None:
    """The sentence where an input and something else draw from one generator."""
    inputs = [("x", fit_state.source), ("validation_data", fit_state.validation)]
    owners = [
        (name, {id(raw_value(each)) for each in getattr(source, "owned", ())}) for name, source in inputs
    ]
    if not any(owned for _, owned in owners):
        return None
    callbacks = {f"callback {name}": each for name, each in named(fit_state.callbacks)}
    model_draws = found_generators(variable_state.held_by(model))
    callbacks_draw = found_generators(callbacks)
    variables = {
        v.name: v
        for group in variable_state.variables_of(model).values()
        for v in group
        if v.name is not None
    }
    users = [("the model", {**model_draws, **variables}), ("a callback", callbacks_draw)]
    for place, owned in owners:
        for user, drawn in users:
            for name, each in drawn.items():
                if id(raw_value(each)) in owned:
                    return _shared(place, user, name)
    if owners[0][1] & owners[1][1]:
        return _shared("x", "validation_data", "one generator")
    return None


def _shared(place: str, user: str, name: str) -> str:
    return (
        f"{place} and {user} draw from the same random numbers ({name}), in an order that depends on how far the input is "
        "read ahead: a resumed training cannot be exact; give each a generator of its own."
    )
