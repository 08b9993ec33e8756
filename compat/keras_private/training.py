"""The parts of Keras' trainer that ours uses, and their state in a model."""

import contextlib
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, TypeVar, cast

import keras

from ..shared_change import share_attribute
from ..upstream_places import (
    KerasTrainer,
    compute_output_spec,
    get_keras_mask,
    traceback_utils,
    unpack_x_y_sample_weight,
)
from ..wrong_use import WrongUse
from . import private_method
from .functional import find_known_outputs

Function = TypeVar("Function", bound=Callable[..., Any])


def filter_traceback(function: Function) -> Function:
    """Return Keras' decorator, typed: editors and type checkers still see the arguments of the decorated function."""
    return cast(Function, traceback_utils.filter_traceback(function))


compiled_loss = attrgetter("_compile_loss")
"""The compiled loss: callable as `loss(y, y_pred, sample_weight)`; None without a loss."""
compiled_metrics = attrgetter("_compile_metrics")
"""The compiled arguments `metrics` and `weighted_metrics`; None without any."""
loss_tracker = attrgetter("_loss_tracker")
"""The metric with the mean of the loss; None before `compile`."""
compile_config = attrgetter("_compile_config.config")
"""The arguments of `compile` as saved in a file; removed ones take their defaults."""
strategy_of = attrgetter("_distribute_strategy")
"""The strategy that the model was built under; None for one that was built outside any scope."""
epoch_to_begin_with = attrgetter("_initial_epoch")
"""The initial epoch that a callback of Keras has set."""
check_compiled = private_method("_assert_compile_called")
"""`check_compiled(model, method)` raises for a model without `compile`, and names the method that was called."""
logs_in_order = private_method("_flatten_metrics_in_order")
"""`logs_in_order(model, logs)`: the results in the order of the model's metrics, a number or a list of them."""
evaluates_after = private_method("_should_eval")
"""`evaluates_after(model, epoch, validation_freq)`: whether `fit` evaluates after this epoch."""


def flat_losses(model: Any) -> list[Any]:
    """Return the compiled loss functions of all outputs. Only after the first call of the compiled loss."""
    loss = model._compile_loss
    return [] if loss is None else [entry.loss for entry in loss._flat_losses]


def entries_of(loss: Any, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Return the result of `loss.call`, and the mask of its entries or None: `Loss.__call__` before the reduction."""
    in_mask = get_keras_mask(y_pred)
    with keras.name_scope(loss.name):
        y_true, y_pred = (
            keras.tree.map_structure(lambda t: keras.ops.convert_to_tensor(t, dtype=loss.dtype), each)
            for each in (y_true, y_pred)
        )
        entries = loss.call(y_true, y_pred)
    masks = [mask for mask in (in_mask, get_keras_mask(entries)) if mask is not None]
    return entries, (masks[0] & masks[1] if len(masks) == 2 else masks[0] if masks else None)


def pretend_built(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Keep Keras' symbolic build from creating optimizer variables that a custom step may never use."""
    return share_attribute(optimizer, "built", lambda _: True)


def find_compiled_metrics(model: Any) -> dict[str, Any]:
    """Return the arguments `metrics` and `weighted_metrics` that were passed to `compile`, by name."""
    metrics = compiled_metrics(model)
    given = (metrics._user_metrics, metrics._user_weighted_metrics) if metrics is not None else ()
    return {name: value for name, value in zip(("metrics", "weighted_metrics"), given) if value is not None}


def find_loss_weights(model: Any) -> Any:
    """Return the argument `loss_weights` of `compile`."""
    return getattr(model._compile_loss, "_user_loss_weights", None)


def compute_loss(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `model.compute_loss`, with `training` if it takes that; raise a TypeError if it returns no number."""
    loss = model._compute_loss(*args, **kwargs)
    if loss is None or isinstance(loss, str | bytes) or (isinstance(loss, list | tuple | dict) and not loss):
        hint = ": is a `return` missing?" if loss is None else ""
        raise WrongUse(f"`compute_loss` must return the loss, a scalar tensor. Received: {loss!r}{hint}")
    return loss


def overrides_compute_loss(model: Any) -> bool:
    """Return whether the model has a custom `compute_loss`."""
    return type(model).compute_loss is not KerasTrainer.compute_loss or "compute_loss" in vars(model)


def set_strategy_of(model: Any, strategy: Any) -> None:
    """Assign the model to `strategy`."""
    model._distribute_strategy = strategy


def build_symbolically(model: Any, batch: Any) -> None:
    """Make all variables from `keras.KerasTensor`s, without Keras' second trace where the graph has the outputs."""
    x, y, sample_weight = unpack_x_y_sample_weight(batch)
    y_pred = find_known_outputs(model, x)
    if y_pred is not None:
        if model._compile_metrics is not None and not model._compile_metrics.built:
            compute_output_spec(model.compute_metrics, x, y, y_pred, sample_weight=sample_weight)
        if model._compile_loss is not None and not model._compile_loss.built:
            options = {"sample_weight": sample_weight, "training": False}
            compute_output_spec(model._compute_loss, x, y, y_pred, **options)
    try:
        model._symbolic_build(data_batch=batch)
    except RuntimeError as error:
        raise (error.__context__ or error) from None  # Keras hides the error of a `call` behind its advice


def begin_with_epoch(model: Any, epoch: int) -> None:
    """Set the initial epoch of plain Keras' `fit`; called in `on_train_begin`."""
    model._initial_epoch = epoch


def plain_fit() -> weakref.ref[Any] | None:
    """Return the callbacks of the innermost plain `fit` of this thread, which live in its frame; None without one."""
    return next((weakref.ref(frame.f_locals["callbacks"]) for frame in _plain_fits(sys._getframe())), None)


def still_runs(fit: weakref.ref[Any]) -> bool:
    """Return whether the result of `plain_fit` still runs, in any thread; after an error a traceback may keep it alive."""
    callbacks = fit()
    frames = (frame for top in sys._current_frames().values() for frame in _plain_fits(top))
    return callbacks is not None and any(frame.f_locals.get("callbacks") is callbacks for frame in frames)


def _plain_fits(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """Yield the frames of Keras' own `fit` among `frame` and its callers."""
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_globals.get("__name__", "").startswith("keras.src."):
            yield frame
        frame = frame.f_back


def losses_of_classes(model: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return (position in the outputs, ignored class or None) of each loss whose targets are class numbers."""
    functions = (keras.losses.sparse_categorical_crossentropy, keras.losses.ctc)
    losses = getattr(model._compile_loss, "_flat_losses", None) or ()
    of_classes = [entry for entry in losses if getattr(entry.loss, "fn", None) in functions]
    settings = [(entry.path, settings_of(entry.loss)) for entry in of_classes]
    return [(path, given.get("ignore_class")) for path, given in settings if given.get("axis", -1) == -1]


def settings_of(loss: Any) -> dict[str, Any]:
    """Return the arguments that a loss or metric class of Keras passes to its function."""
    return getattr(loss, "_fn_kwargs", {})


def find_held_metrics(owner: Any) -> list[Any]:
    """Return the metrics that a layer or a metric holds directly, in attributes, lists and dicts."""
    return list(getattr(owner, "_metrics", ()))


def makes_variables_late(metric: Any) -> bool:
    """Return whether the metric creates its variables later, when it knows the shape of the targets (`F1Score`)."""
    return not getattr(metric, "_built", True)
