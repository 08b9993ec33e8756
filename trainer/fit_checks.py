"""Checks before the first step: each error names the argument, the value and the fix."""

import dataclasses
import numbers
import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..callbacks.keras_callbacks import check_keras_callbacks
from ..compat.keras_private.layers import find_captures, layers_of
from ..compat.keras_private.training import strategy_of
from ..compat.keras_private.variables import raw_value, was_left
from ..compat.tensorflow_private.strategies import prepare_collectives
from ..compat.wrong_use import WrongUse
from ..distribute import keras_distribution
from ..distribute.arguments import number, show, truth, whole_number
from ..distribute.environment import ELASTIC
from ..distribute.hardware.devices import check_exist
from ..distribute.mesh import mesh_of
from ..distribute.sharding.sharded import level_of
from ..distribute.sharding.sharded_value import ShardedValue
from ..state.trained_model import TrainedModel
from .inputs.given_data import GivenData

_ON_THIS_MACHINE = (
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MirroredStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
)
_SUPPORTED = (
    *_ON_THIS_MACHINE,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.experimental.ParameterServerStrategy,
    tf.distribute.TPUStrategy,
)


def check_strategy(strategy: Any) -> None:
    """Reject a strategy whose variables and collectives are unknown (such as those of TensorFlow 1)."""
    if isinstance(strategy, _ON_THIS_MACHINE):
        check_exist(f"{type(strategy).__name__}", strategy.extended.worker_devices)
        prepare_collectives(strategy)
    if strategy is None or isinstance(strategy, _SUPPORTED):
        return
    raise ValueError(
        f"The model was built under {type(strategy).__name__}, which is not supported: build it under "
        "tf.distribute.MirroredStrategy or another strategy of TensorFlow 2."
    )


def with_global_batch(model: TrainedModel, data: GivenData, per_replica_batch_size: Any) -> GivenData:
    """Return `data` in global batches of this many samples for each replica; as it is, where it is None."""
    if per_replica_batch_size is None:
        return data
    if data.batch_size is not None:
        raise ValueError(
            "Pass either `batch_size` (the global batch) or `per_replica_batch_size`, not both. Received: "
            f"batch_size={data.batch_size!r} and per_replica_batch_size={per_replica_batch_size!r}"
        )
    samples = whole_number("per_replica_batch_size", per_replica_batch_size)
    if ELASTIC in os.environ:
        raise ValueError(
            f"per_replica_batch_size={samples} is invalid in an elastic launch (--nnodes MIN:MAX), because the global batch "
            "would change with the number of workers: pass `batch_size`, the global batch."
        )
    data.check_alone(per_replica_batch_size=samples)
    return dataclasses.replace(data, batch_size=samples * mesh_of(model.distribute_strategy).shape[0])


def check_home(model: TrainedModel, method: str) -> None:
    """Reject a model whose variables belong to a strategy that is not the current one."""
    if tf.distribute.has_strategy() and strategy_of(model) is not tf.distribute.get_strategy():
        raise ValueError(
            f"`{method}()` was called under the scope of {_name(tf.distribute.get_strategy())}, but the model was built "
            f"{_find_scope(model)}: build and compile the model under the `strategy.scope()` that it is trained in."
        )
    home = strategy_of(model)
    check_strategy(home)
    if (distributed := keras_distribution.strategy_of_scope()) not in (None, home):
        raise ValueError(
            f"`{method}()`: keras.distribution is set to a {type(keras.distribution.distribution()).__name__} over "
            f"{distributed.num_replicas_in_sync} device(s), but the model was built {_find_scope(model)}: "
            f"{model._runner.cure}, or call keras.distribution.set_distribution(None)."
        )
    for variable in model.variables:
        value = raw_value(variable)
        copied = isinstance(value, tf.distribute.DistributedValues | ShardedValue)
        owner = getattr(value, "distribute_strategy", None)
        if copied and owner is not home:
            raise ValueError(
                f"`{method}()`: the variable {variable.path!r} belongs to {_name(owner)}, but the model was built "
                f"{_find_scope(model)}: build the model and all of its layers under one `strategy.scope()`."
            )


def check_traced_functions(model: TrainedModel, method: str) -> None:
    """Reject layers whose traced functions, as in a SavedModel, read variables that are trained elsewhere."""
    moves = model._runner.moves_variables
    if strategy_of(model) is None and not moves:
        return
    for layer in layers_of(model):
        captured = find_captures(layer)
        trained = [raw_value(v) for v in layer.trainable_variables] if captured else []
        own = {id(getattr(v, "handle", None)) for v in trained if moves}
        if trained and any(was_left(each) or id(each) in own for each in captured):
            raise ValueError(
                f"`{method}()`: a function of the layer {layer.name!r} was traced before its variables were placed where "
                "they are trained, so it does not read the trained ones: create the layer in `strategy.scope()`, or set "
                "`trainable=False`."
            )


def check_stateful(model: TrainedModel, method: str) -> None:
    """Reject recurrent layers that keep a state for each sample, where replicas split the samples."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas == 1:
        return
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise ValueError(
                f"`{method}()`: the layer {layer.name!r} has stateful=True, so it keeps a state for each sample of the "
                f"global batch, but {replicas} replicas split that batch: use one replica, or `initial_state`."
            )


def check_compiles(model: TrainedModel, method: str) -> None:
    """Reject XLA where replicas share variables, or weights are sharded: it compiles for one device, without gathering."""
    home: Any = strategy_of(model)
    if not model.jit_compile or model.run_eagerly or home is None or home.num_replicas_in_sync == 1:
        return
    if level_of(home) == "weights":
        raise ValueError(
            f"`{method}()`: `jit_compile=True` does not work with sharded weights, because XLA would all-gather all of "
            'them first: compile the model with `jit_compile="auto"` or False.'
        )
    if isinstance(home, tf.distribute.experimental.CentralStorageStrategy):
        raise ValueError(
            f"`{method}()`: `jit_compile=True` does not work under {_name(home)}, where XLA cannot reach the variables that "
            'all replicas share: compile the model with `jit_compile="auto"` or False.'
        )


def _find_scope(model: TrainedModel) -> str:
    home = strategy_of(model)
    return model._runner.home if home is None else f"under {_name(home)}"


def _name(strategy: Any) -> str:
    if strategy is None:
        return "no strategy"
    return f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replica(s)"


_FROM_0 = ("epochs", "initial_epoch")
_FROM_1_OR_NONE = ("overfit_batches", "validation_steps", "validation_batch_size")


def check_fit(model: Any, arguments: Any) -> None:
    """Reject invalid arguments of `fit`, and convert the others to the form that the loop needs."""
    for name in (*_FROM_0, *_FROM_1_OR_NONE):
        least, optional = int(name not in _FROM_0), name not in _FROM_0
        setattr(arguments, name, whole_number(name, getattr(arguments, name), least, optional))
    check_loop(model, arguments.verbose, arguments.callbacks)
    arguments.shuffle = _shuffle(arguments.shuffle)
    arguments.validation_freq = _validation_freq(arguments.validation_freq)
    split, data = arguments.validation_split, arguments.validation_data
    if split is not False:
        number("validation_split", split, least=0, below=1, optional=True)
    truth("fast_dev_run", arguments.fast_dev_run)
    several = isinstance(data, tuple | list)
    if isinstance(data, str | bytes | numbers.Number) or (several and not 1 <= len(data) <= 3):
        received = f"a {type(data).__name__} of {len(data)}" if several else show(data)
        raise ValueError(
            f"`validation_data` must be (x, y), (x, y, sample_weight) or a dataset. Received: {received}"
        )


def _shuffle(shuffle: Any) -> Any:
    """Return `shuffle` if it is None, True, False or "batch"."""
    if shuffle is None or (isinstance(shuffle, str) and shuffle == "batch"):
        return shuffle
    if not isinstance(shuffle, bool | np.bool_ | int) or shuffle not in (0, 1):
        raise ValueError(f'`shuffle` must be True, False or "batch". Received: {show(shuffle)}')
    return bool(shuffle)


def _validation_freq(freq: Any) -> int | list[int]:
    """Return an int of at least 1, or a list of ints of at least 1, the form that Keras' own loop needs."""
    several = isinstance(freq, list | tuple | set | range) or getattr(freq, "ndim", 0) == 1
    try:
        found = [whole_number("validation_freq", epoch) for epoch in (freq if several else [freq])]
    except ValueError as error:
        raise ValueError(
            "`validation_freq` must be a whole number of at least 1 or a list of epochs, counted from 1. "
            f"Received: {show(freq)}"
        ) from error
    return found if several else found[0]


def check_loop(model: Any, verbose: Any, callbacks: Any) -> None:
    """Reject invalid `verbose` and `callbacks` of `fit`, `evaluate` and `predict`."""
    if not isinstance(verbose, str | numbers.Integral | np.bool_) or verbose not in (0, 1, 2, 3, "auto"):
        raise ValueError(f'`verbose` must be "auto", 0, 1, 2 or 3. Received: {show(verbose)}')
    if callbacks is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return
    for callback in keras.tree.flatten(callbacks):
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            raise TypeError(
                "`callbacks` must be a list of instances of keras.callbacks.Callback. "
                f"Received: {show(callback)} in callbacks={show(callbacks)}"
            )
    check_keras_callbacks(keras.tree.flatten(callbacks), getattr(model, "optimizer", None))


def check_logs(logs: Any, step: str, text: bool = True) -> Any:
    """Return a custom step's logs; raise a `TypeError` if they are not a dict, or a value is not numbers or `text`."""
    rule = f"`{step}` must return a dict from names to scalars, such as {{'loss': loss}}"
    if not isinstance(logs, Mapping):
        hint = ": is a `return` missing?" if logs is None else ""
        raise WrongUse(f"{rule}. Received: {show(logs)}{hint}")
    for name, value in logs.items():
        if isinstance(value, Mapping):
            check_logs(value, step, text)
        elif not _is_log(value, text):
            raise WrongUse(f"{rule}. Received: {show(value)} as {name!r}")
    return logs


def _is_log(value: Any, text: bool) -> bool:
    """Return whether TensorFlow accepts it as numbers, or as `text`. An empty list has none."""
    try:
        is_text = tf.convert_to_tensor(value).dtype == tf.string
    except (TypeError, ValueError):
        return False
    return (text or not is_text) and not (isinstance(value, list) and not value)
