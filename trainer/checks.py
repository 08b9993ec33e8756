"""What is refused before the first step: each in one sentence with the argument, the value and the cure."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ..callbacks.trained_model import TrainedModel
from ..compat.training import strategy_of
from ..compat.variables import raw_value
from ..distribute.arguments import whole_number
from .inputs.structure import is_standard, unpack

_SUPPORTED = (
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
    tf.distribute.experimental.ParameterServerStrategy,
    tf.distribute.TPUStrategy,
)


def check_strategy(strategy: Any) -> None:
    """Refuses a strategy whose variables and collectives we do not know (those of TensorFlow 1, say)."""
    if strategy is None or isinstance(strategy, _SUPPORTED):
        return
    raise ValueError(
        f"The model was built under {type(strategy).__name__}, which is not supported: build it under "
        "tf.distribute.MirroredStrategy or another of TensorFlow 2's own strategies."
    )


def check_compile(steps_per_execution: Any, jit_compile: Any) -> None:
    """Refuses arguments of `compile` that have no meaning."""
    if steps_per_execution != "auto" and (
        isinstance(steps_per_execution, bool)
        or not isinstance(steps_per_execution, int)
        or steps_per_execution < 1
    ):
        raise ValueError(
            f'`steps_per_execution` must be "auto" or an int of at least 1. Received: {steps_per_execution!r}'
        )
    if jit_compile not in ("auto", True, False, None):
        raise ValueError(f'`jit_compile` must be "auto", True or False. Received: {jit_compile!r}')


def global_batch_size(model: TrainedModel, batch_size: Any, per_replica_batch_size: Any) -> int | None:
    """The rows of the global batch from the two ways to say it; None where neither is given."""
    if per_replica_batch_size is None:
        return batch_size
    if batch_size is not None:
        raise ValueError(
            "Give either `batch_size` (the global batch) or `per_replica_batch_size`. Received: "
            f"batch_size={batch_size!r} and per_replica_batch_size={per_replica_batch_size!r}"
        )
    rows = whole_number("per_replica_batch_size", per_replica_batch_size)
    return rows * model.distribute_strategy.num_replicas_in_sync


def check_home(model: TrainedModel, method: str) -> None:
    """Refuses a model whose variables belong to another strategy than the one that it is to run under."""
    if tf.distribute.has_strategy() and strategy_of(model) is not tf.distribute.get_strategy():
        raise ValueError(
            f"`{method}()` was called under the scope of {_name(tf.distribute.get_strategy())}, but the model was built "
            f"{_built_where(model)}: build and compile the model under the `strategy.scope()` that it is trained in."
        )
    home = strategy_of(model)
    check_strategy(home)
    for variable in model.variables:
        value = raw_value(variable)
        if not isinstance(value, tf.Variable | tf.distribute.DistributedValues):
            continue
        owner = getattr(value, "distribute_strategy", None)
        copied = isinstance(value, tf.distribute.DistributedValues)
        if copied and owner is not home:
            raise ValueError(
                f"`{method}()`: the variable {variable.path!r} belongs to {_name(owner)}, but the model was built "
                f"{_built_where(model)}: build the model and all of its layers under one `strategy.scope()`."
            )


def check_compiles(model: TrainedModel, method: str) -> None:
    """Refuses XLA where replicas share their variables: it compiles for one device, and they are on another."""
    home: Any = strategy_of(model)
    if (
        model.jit_compile
        and not model.run_eagerly
        and isinstance(home, tf.distribute.experimental.CentralStorageStrategy)
        and home.num_replicas_in_sync > 1
    ):
        raise ValueError(
            f"`{method}()`: `jit_compile=True` does not work under {_name(home)}, where XLA cannot reach the variables that "
            'all replicas share: compile the model with `jit_compile="auto"` or False.'
        )


def _built_where(model: TrainedModel) -> str:
    home = strategy_of(model)
    return "outside of any scope" if home is None else f"under {_name(home)}"


def _name(strategy: Any) -> str:
    if strategy is None:
        return "no strategy"
    return f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replica(s)"


def check_fit(arguments: Any) -> None:
    """Refuses arguments of `fit` that have no meaning."""
    for name, least in (("epochs", 0), ("initial_epoch", 0)):
        whole_number(name, getattr(arguments, name), least)
    if arguments.verbose not in (0, 1, 2, "auto", True, False):
        raise ValueError(f'`verbose` must be "auto", 0, 1 or 2. Received: {arguments.verbose!r}')
    check_callbacks(arguments.callbacks)
    freq = arguments.validation_freq
    if not isinstance(freq, list | tuple | set) and (
        isinstance(freq, bool) or not hasattr(freq, "__index__") or int(freq) < 1
    ):
        raise ValueError(
            f"`validation_freq` must be an int of at least 1 or a list of epochs. Received: {freq!r}"
        )
    split = arguments.validation_split
    if split and not 0 < split < 1:
        raise ValueError(f"`validation_split` must be between 0 and 1. Received: {split!r}")


def check_callbacks(callbacks: Any) -> None:
    """Refuses what is no callback: a class instead of an instance, say."""
    if callbacks is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return
    for callback in keras.tree.flatten(callbacks):
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            raise TypeError(
                "`callbacks` must be a list of instances of keras.callbacks.Callback. "
                f"Received: callbacks={callbacks!r}"
            )


def check_targets(model: TrainedModel, spec: Any, error: Exception) -> None:
    """Says that the targets are missing, where that is why a model with a loss could not be built."""
    if model.loss is not None and unpack(spec)[1] is None:
        raise ValueError(
            f"`y` is None, but the model was compiled with loss={model.loss!r}: give the targets as `y`, or as the second "
            "part of what the dataset gives."
        ) from error


def check_structure(model: TrainedModel, spec: Any, step: str) -> None:
    """Refuses batches that Keras' own step cannot take apart; a step of the user's own takes any.

    Args:
        model: the model.
        spec: nest of `tf.TypeSpec` of a batch.
        step: "train_step", "test_step" or "predict_step".
    """
    if not is_standard(spec) and not model._overrides_step(step):
        raise ValueError(
            f"`x` gives tuples of {len(spec)}, but `{step}` takes x, (x,), (x, y) or (x, y, sample_weight): put several "
            f"inputs into one tuple or dict, or give the model a `{step}` of its own. Received: {spec}"
        )


def check_text(model: TrainedModel, spec: Any) -> None:
    """Refuses strings where a model with declared inputs takes numbers."""
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or [])
    given = keras.tree.flatten(unpack(spec)[0])
    if len(inputs) != len(given):
        return
    for tensor, leaf in zip(inputs, given):
        if getattr(leaf, "dtype", None) == tf.string and tensor.dtype != "string":
            raise ValueError(
                f"`x` holds strings, but the input {tensor.name!r} of the model takes {tensor.dtype}. Received: {leaf}. "
                "Encode the strings as numbers first, or begin the model with a keras.layers.StringLookup or "
                "TextVectorization."
            )
