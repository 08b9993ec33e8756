"""Reports once how deterministic operations slow down a fit, because TensorFlow's switch is silent."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import operations_are_deterministic
from ....compat.tensorflow_private.pipelines import in_any_order, transformations
from ....state.trained_model import TrainedModel

_said: set[str] = set()


def say_what_determinism_costs(model: TrainedModel, x: Any) -> None:
    """Print one line, where `tf.config.experimental.enable_op_determinism()` was called; once for each cost.

    `x` is the input of `fit`, as the user gave it. Context: the chief.
    """
    if not operations_are_deterministic():
        return
    line = f"Deterministic operations (enable_op_determinism) make this fit slower: {'; '.join(_costs(model, x))}."
    if line not in _said:
        _said.add(line)
        print(line, flush=True)


def _costs(model: TrainedModel, x: Any) -> Iterator[str]:
    untried = ", and they are not chosen by speed" if tf.config.list_logical_devices("GPU") else ""
    yield f"some kernels are slower, such as the gradients of convolutions and scatters{untried}"
    if model._auto_jit and not model.run_eagerly:
        yield "steps run in the plain graph (`jit_compile=True` selects XLA, which may be faster)"
    if not isinstance(x, tf.data.Dataset):
        return
    for step in transformations(x):
        if step.in_parallel and (step.keeps_state or step.draws or step.calls_python):
            what = "calls Python" if step.calls_python else "draws random numbers or writes a variable"
            yield (
                f"the {step.name.strip('_')} of the input {what}, so it is sequential: draw with tf.random.stateless_* "
                "functions to run it in parallel"
            )
    if in_any_order(x):
        yield "the input is read in order, because deterministic=False is ignored"
