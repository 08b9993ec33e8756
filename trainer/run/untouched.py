"""Restores all state bit-for-bit after measurements and trials: variables, random generators, state of loops."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.keras_private.seed_generators import forget_generators
from ...optimizers.stages.step_hooks import add_step_hook, remove_step_hook, step_hooks
from ...state import random_state, variable_state
from ...state.random_state import find_generators
from ...state.trained_model import TrainedModel
from ..inputs.outside_state import PipelineState

# The state of a loop in a model. How training steps run depends on measurements, so this is excluded, too.
_ATTRIBUTES = ("fit_state", "history", "stop_training", "stop_evaluating", "train_function")


@contextlib.contextmanager
def restore_state(model: TrainedModel, inputs: Any) -> Iterator[None]:
    """A block in which the model may be trained or evaluated: its end restores all state, even after an error.

    The state is: the variables of the model, its optimizer and its metrics, and those that layers hold; the loops'
    attributes of the model; and random generators, see `restore_generators`. The model, its optimizer and its metrics are
    built; `inputs`, a nest of the user's inputs, are read through `copy_input`. Context: host; on every worker.
    """
    strategy = model.distribute_strategy
    variables = [v for group in variable_state.variables_of(model).values() for v in group]
    values = [variable_state.capture(v, strategy, lambda _, array: np.array(array)) for v in variables]
    names = _ATTRIBUTES
    hooks = [(hook, phase) for phase in ("train", "test") for hook in step_hooks(model, phase)]
    for hook, phase in hooks:
        remove_step_hook(model, hook)
        names = (*names, *(["test_function"] if phase == "test" else []))
    attributes = {name: vars(model).pop(name) for name in names if name in vars(model)}
    model.fit_state = attributes.get("fit_state")
    model.train_function, model.test_function = None, vars(model).get("test_function")
    model.stop_training = model.stop_evaluating = False
    with restore_generators(model, inputs):
        try:
            yield
        finally:
            for name in names:
                vars(model).pop(name, None)
            vars(model).update(attributes)
            for hook, phase in hooks:
                add_step_hook(model, hook, phase)
            for variable, value in zip(variables, values):
                variable_state.restore(variable, value)


@contextlib.contextmanager
def restore_generators(model: TrainedModel, inputs: Any) -> Iterator[None]:
    """Restore the generators of Keras, TensorFlow, NumPy and Python, and those that layers, the loss and inputs hold."""
    leaves = tf.nest.flatten(inputs)
    pipelines = [PipelineState(x) for x in leaves if isinstance(x, tf.data.Dataset)]
    given = {f"input {i}": x for i, x in enumerate(leaves)}
    held = find_generators({**variable_state.find_held(model), **given})
    drawn = random_state.capture(held)
    try:
        yield
    finally:
        for pipeline in pipelines:
            pipeline.restore(pipeline.state())
        forget_generators(keras="keras" not in drawn, tensorflow="tensorflow" not in drawn)
        random_state.restore(drawn, held)
