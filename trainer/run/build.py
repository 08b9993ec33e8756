"""Creates all variables before the first step: of the model, its losses, metrics and optimizers."""

import contextlib
import difflib
import functools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.functional import undo_failed_build
from ...compat.keras_private.layers import layers_of
from ...compat.keras_private.training import (
    build_symbolically,
    compiled_loss,
    compiled_metrics,
    compute_loss,
    makes_variables_late,
    pretend_built,
    strategy_of,
)
from ...compat.keras_private.variables import raw_value
from ...compat.tensorflow_graphs.graphs import scratch_graph
from ...compat.tensorflow_graphs.one_device import as_on_one_device
from ...compat.upstream_places import compute_output_spec, unpack_x_y_sample_weight
from ...distribute.sharding.sharded_value import ShardedValue
from ...distribute.sharding.whole_reads import read_together
from ...distribute.step_context import StepContext, step_scope
from ...optimizers.building import ensure_built, optimizers_of
from ...state.trained_model import TrainedModel
from ..inputs.batch import all_leaves, of_size
from ..step.first_call import placeholder
from ..step.global_metrics import metrics_of
from ..step.train_step import default_test_step
from .checks.argument_errors import explain_errors
from .checks.batch_checks import check_batches


def build_for(model: TrainedModel, spec: Any, name: str, samples: int | None = None) -> None:
    """Build the parts of the model that are not built yet for the step `name` on batches of `spec`, of any size.

    Code that needs the number of samples while it is traced (`x.shape[0] * 2`) gets `samples`, that of a full batch, if it
    is known. Keras builds a model symbolically from its `call`. A model with a custom step (such as a GAN, which may have
    no `call`) is built by tracing that step once, without running it. For "predict_step" only the layers are built, for the
    inputs in `spec`. Context: cross-replica, under the model's strategy.
    """
    check_batches(model, spec, name)
    predicts = name == "predict_step"
    build = functools.partial(
        _build_any_size, _for_prediction if predicts else _symbolically, samples=samples
    )
    if predicts and all(layer.built for layer in layers_of(model)):
        return
    if model._overrides_step(name):
        optimizers = optimizers_of(model) if name == "train_step" else ()
        _build_by_custom_step(model, spec, getattr(model, name), build, optimizers)
        return
    if predicts:
        with explain_errors(model, spec, step=name):
            build(model, spec)
        return
    if model._overrides_step("train_step"):  # it may use batches differently than Keras' own steps
        with contextlib.suppress(Exception):
            build(model, spec)
        return
    if is_built(model):
        return
    # It may call layers that `call` does not.
    own_loss = type(model).compute_loss is not keras.Model.compute_loss
    with explain_errors(model, spec, step=name):
        build(model, spec)
    if own_loss and model.optimizer is not None and _unbuilt(model):
        _build_by_custom_step(model, spec, functools.partial(default_test_step, model), build, ())
    if model.optimizer is not None:  # for the weights that Keras' step trains, not for `trainable_variables`
        ensure_built(model.optimizer, model.trainable_weights)


def is_built(model: TrainedModel) -> bool:
    """Return whether no variable is missing that Keras' own step would create."""
    return model.built and not _unbuilt(model) and (model.optimizer is None or model.optimizer.built)


def creates_variables_late(model: TrainedModel) -> bool:
    """Return whether an eager custom step creates the missing variables itself, of metrics and losses but no layers."""
    eager = model.run_eagerly and model._overrides_step("train_step")
    return eager and strategy_of(model) is None and all(layer.built for layer in layers_of(model)[1:])


def _build_by_custom_step(
    model: TrainedModel, spec: Any, custom_step: Any, otherwise: Any, optimizers: Sequence[Any]
) -> None:
    """Create a custom step's variables in traces; errors are left to the first real step, which names the line."""

    def unbuilt() -> int:
        late = sum(makes_variables_late(metric) for metric in metrics_of(model))
        return _unbuilt(model) + late + sum(not optimizer.built for optimizer in optimizers)

    missing, before, seen = unbuilt(), -1, False
    while missing and missing != before and not seen:
        # Variables are created when the scope ends, and the next trace gets further: unless it has seen all layers built.
        built = all(layer.built for layer in layers_of(model)[1:])
        used, ended = trace_to_build(custom_step, spec, model.variables, built)
        seen = built and ended
        for optimizer, variables in used:  # which have values only now
            ensure_built(optimizer, variables)
        missing, before = unbuilt(), missing
    if _unbuilt(model) and type(model).call is not keras.Model.call:
        with contextlib.suppress(Exception):
            otherwise(model, spec)


def trace_to_build(
    fn: Callable[[Any], Any], spec: Any, variables: Sequence[Any], built: bool = True
) -> tuple[list[tuple[Any, list[Any]]], bool]:
    """Create the variables that a step lacks by tracing it on placeholders of `spec`; they have values at the end.

    Return its calls of optimizers, with their variables, and whether the trace ended without an error. Context:
    cross-replica, under the strategy; in replica context where all layers are `built`, for gradients of copies.
    """
    used: list[tuple[Any, list[Any]]] = []
    copied = any(isinstance(raw_value(v), tf.distribute.DistributedValues | ShardedValue) for v in variables)
    step = StepContext(0, 1, 1, 1)
    step.take_gradients = lambda optimizer, pairs: used.append((optimizer, [v for _, v in pairs]))
    ended = False
    with contextlib.suppress(Exception), scratch_graph(), keras.StatelessScope():
        with contextlib.ExitStack() as contexts:
            if built and copied:
                contexts.enter_context(read_together(variables))
                contexts.enter_context(as_on_one_device())
            contexts.enter_context(step_scope(step))
            fn(keras.tree.map_structure(placeholder, spec))
        ended = True
    return used, ended


def _unbuilt(model: TrainedModel) -> int:
    """Return the number of layers, metrics and losses without variables."""
    compiled = [part for part in (compiled_metrics(model), compiled_loss(model)) if part is not None]
    return sum(not part.built for part in [*layers_of(model)[1:], *compiled])


def _build_any_size(
    build: Callable[[TrainedModel, Any], None], model: TrainedModel, spec: Any, samples: int | None
) -> None:
    """Call `build` for batches of any size; where that fails, for those of `samples`."""
    errors: list[Exception] = []
    for each in (spec, of_size(spec, samples)):
        try:
            with undo_failed_build(layers_of(model)):
                build(model, each)
            return
        except Exception as error:
            errors.append(error)
    raise errors[0] from None


def _symbolically(model: TrainedModel, spec: Any) -> None:
    """Build the model from its `call`, and the metrics and losses of `compile`, but not the optimizer."""
    unknown = [path for path, leaf in all_leaves(spec) if leaf is not None and leaf.shape.rank is None]
    if unknown:
        raise ValueError(
            f"`{unknown[0]}` has an unknown number of dimensions, for which no layer can be built: declare its shape, for "
            "example in `output_signature`, or with `tf.ensure_shape` in `dataset.map`."
        )
    if _needs_real_tensors(spec):
        return _build_with_placeholders(model, spec)
    batch, optimizer = keras.tree.map_structure(_symbolic, spec), model.optimizer
    if optimizer is not None and not optimizer.built:
        with pretend_built(optimizer):
            build_symbolically(model, batch)
    else:
        build_symbolically(model, batch)


def _for_prediction(model: TrainedModel, spec: Any) -> None:
    x, _, _ = unpack_x_y_sample_weight(spec)
    if _needs_real_tensors(x):
        _build_with_placeholders(model, (x,))
    else:
        compute_output_spec(model, keras.tree.map_structure(_symbolic, x), training=False)


def _needs_real_tensors(spec: Any) -> bool:
    """Return whether a batch has sparse or ragged tensors, or extension types: dense ones in Keras' symbolic build."""
    return any(not isinstance(s, tf.TensorSpec | None) for s in tf.nest.flatten(spec))


def _build_with_placeholders(model: TrainedModel, spec: Any) -> None:
    """Create the variables of layers, metrics and losses by calling them in a scratch graph on tensors of `spec`."""

    def call_everything() -> Any:
        x, y, sample_weight = unpack_x_y_sample_weight(keras.tree.map_structure(placeholder, spec))
        y_pred = model(x, training=False)
        if y is None:
            return y_pred
        for part, method in (
            (compiled_metrics(model), model.compute_metrics),
            (compiled_loss(model), functools.partial(compute_loss, model)),
        ):
            if part is not None and not part.built:
                method(x, y, y_pred, sample_weight)
        return y_pred

    compute_output_spec(call_everything)


def _symbolic(spec: Any) -> Any:
    if spec is None:
        return None
    dtype = keras.backend.standardize_dtype(spec.dtype)
    return keras.KerasTensor(spec.shape, dtype)


def check_layouts(model: TrainedModel) -> None:
    """Warn once of patterns of a layout map that no variable matches: a renamed layer would be whole, silently."""
    home: Any = strategy_of(model)
    layouts = getattr(home, "layouts", None) or {}
    paths = [variable.path for variable in model.variables]
    paths += [f"{layer.path}/output" for layer in layers_of(model) if layer.path]
    for pattern in layouts:
        if any(re.fullmatch(pattern, path) for path in paths) or pattern in home.unmatched:
            continue
        home.unmatched.add(pattern)
        near = difflib.get_close_matches(pattern, paths, 1, 0.0)
        warnings.warn(
            f"The pattern {pattern!r} of the layout map matches no variable and no output, so it does nothing. The nearest "
            f"path is {near[0]!r}: a pattern must match a whole path.",
            stacklevel=2,
        )
