"""`evaluate`, `predict`, forward passes of callbacks, and trials that restore all state. `runner`: a `fit_loop.Runner`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.output_paths import writes_to_stores
from ...compat.keras_private.seed_generators import forget_generators
from ...compat.keras_private.training import (
    convert_to_np_if_not_ragged,
    potentially_ragged_concat,
    unpack_x_y_sample_weight,
)
from ...compat.shared_change import share_attribute
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...optimizers.stages.step_hooks import add_step_hook, remove_step_hook, step_hooks
from ...state import random_state, variable_state
from ...state.random_state import find_generators
from ...state.trained_model import TrainedModel
from ..inputs import Source, make_source
from ..inputs.input_checks import name_arguments
from ..inputs.outside_state import PipelineState
from ..inputs.sources.derived_inputs import copy_input, first_batches
from ..step.train_step import forward
from .callback_list import callback_list
from .checks.argument_errors import check_labels
from .fit_inputs import FitArguments
from .loops.compiled_calls import CompiledCall
from .loops.loop_choice import LoopedSteps
from .passes import Pass


@contextlib.contextmanager
def pass_source(
    model: TrainedModel, phase: str, *data: Any, batch_size: int | None, steps: int | None
) -> Iterator[Source]:
    """Yield the source of one "test" or "predict" pass over `data`, x, y and sample_weight; close it at the end."""
    with name_arguments(steps_per_epoch="steps"):
        source = make_source(
            *data,
            batch_size=batch_size,
            steps_per_epoch=steps,
            strategy=model.distribute_strategy,
            resumable=False,
            custom_step=model._overrides_step(f"{phase}_step"),
            call="predict" if phase == "predict" else "evaluate",
        )
    with contextlib.closing(source):
        yield source


def evaluate(
    model: TrainedModel, source: Source, verbose: Any, callbacks: Any, runner: Any, passes: int = 1
) -> dict[str, Any]:
    """Return the logs of one pass over `source`, of `passes` in all. Context: host."""
    with (
        runner.watch(model),
        share_attribute(model, "_evaluating", lambda _: True),
        writes_to_stores(callbacks),
    ):
        runner.build(model, source.spec, source.batch_size, "test_step")
        check_labels(model, source, "test_step")
        callbacks = callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
        runner.make_function(model, "test")
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        source.begin_epoch(0)
        logs: dict[str, Any] = {}
        runner.prepare(model, "test", source, callbacks.callbacks, passes)
        steps = Pass(model, source, callbacks, "test")
        with contextlib.closing(runner.run_steps(steps)) as calls:
            for batch, logs in calls:
                callbacks.on_test_batch_end(batch, logs)
        logs = steps.epoch_logs(logs)
        callbacks.on_test_end(logs)
    return logs


def try_validation(model: TrainedModel, a: FitArguments, runner: Any) -> None:
    """Evaluate a few batches, so that an error in the validation appears before the first epoch. No callback is called."""
    if a.validation_data is None or not a.validation_sanity_steps:
        return
    x, y, sample_weight = a.validation_data
    with restore_state(model, (x, y, sample_weight)):
        steps = a.validation_sanity_steps
        copy = copy_input(x, f"`validation_sanity_steps` ({steps})")
        x, y, sample_weight, batch_size = first_batches(
            copy, y, sample_weight, steps, a.validation_batch_size, a.validation_steps
        )
        with pass_source(model, "test", x, y, sample_weight, batch_size=batch_size, steps=None) as source:
            evaluate(model, source, 0, None, runner)


def predict(model: TrainedModel, source: Source, verbose: Any, callbacks: Any, runner: Any) -> Any:
    """Return the outputs for one pass over `source`, in order. Context: host."""
    with runner.watch(model), contextlib.ExitStack() as at_exit:
        callbacks = callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
        for callback in callbacks.callbacks:
            if hasattr(callback, "on_predict_exit"):
                at_exit.callback(callback.on_predict_exit)
        taking = [each for each in callbacks.callbacks if hasattr(each, "take_outputs")]
        runner.build(model, source.spec, source.batch_size, "predict_step")
        runner.make_function(model, "predict")
        model.stop_predicting = False
        callbacks.on_predict_begin()
        source.begin_epoch(0)
        outputs: list[Any] = []
        batch = -1
        runner.prepare(model, "predict", source, callbacks.callbacks)
        with contextlib.closing(runner.run_steps(Pass(model, source, callbacks, "predict"))) as calls:
            for batch, new in calls:
                joined = concatenate(new)
                outputs += [] if taking else new
                for callback in taking:
                    callback.take_outputs(joined)
                callbacks.on_predict_batch_end(batch, {"outputs": joined})
        callbacks.on_predict_end()
    if batch < 0:
        raise ValueError("`predict()` got no batch from `x`: pass at least one sample.")
    if taking:
        return taking[0].outputs()
    return keras.tree.map_structure(convert_to_np_if_not_ragged, concatenate(outputs))


def concatenate(outputs: list[Any]) -> Any:
    """Return the concatenated outputs of several batches."""
    leaves = [potentially_ragged_concat(list(parts)) for parts in zip(*map(keras.tree.flatten, outputs))]
    return keras.tree.pack_sequence_as(outputs[0], leaves)


def why_no_pass(model: TrainedModel, source: Source) -> str | None:
    """Return why `forward_pass` is impossible in this fit, and what to do; None if it is possible."""
    if on_parameter_servers(model.distribute_strategy) or model._pipeline is not None:
        return "parameter servers and pipelines cannot run that pass: use a mirrored strategy"
    if not source.rewinds and source.position.given_steps is None:
        return "`x` is a generator, which cannot be read again: pass `steps_per_epoch`, or a keras.utils.PyDataset"
    return None


class _ForwardPass(Pass):
    """One batch in a call, without callbacks."""

    def __init__(self, model: TrainedModel, source: Source, function: LoopedSteps) -> None:
        super().__init__(model, source, keras.callbacks.CallbackList(), "test", function=function)
        self.fixed_steps = 1

    def errors(self, call: CompiledCall) -> contextlib.AbstractContextManager[None]:
        """Return the scope of the model's strategy, entered around the call."""
        return self.model._strategy_scope()


def forward_pass(model: TrainedModel, runner: Any) -> Iterator[int]:
    """See `FitState.forward_pass`. Context: host; on every worker."""
    state: Any = model.fit_state

    def step(data: Any) -> dict[str, Any]:
        forward(model, unpack_x_y_sample_weight(data)[0], training=True)
        return {}

    with model._strategy_scope():
        function = LoopedSteps(model, "test", step)
    state.source.begin_epoch(state.epoch)
    model.stop_evaluating = False
    for steps, _ in enumerate(runner.run_steps(_ForwardPass(model, state.source, function)), 1):
        yield steps


# The state of a loop in a model. How training steps run depends on measurements, so this is excluded, too.
_ATTRIBUTES = ("fit_state", "history", "stop_training", "stop_evaluating", "train_function")


@contextlib.contextmanager
def restore_state(model: TrainedModel, inputs: Any) -> Iterator[None]:
    """Restore all state at the end of the block, in which the model may be trained or evaluated, even after an error.

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
