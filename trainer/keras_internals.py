"""Everything private of Keras that the trainer touches; `tests/unit/test_keras_internals.py` fails when one changes.

Some of Keras' functions are replaced once, when this module is imported. Each replacement asks `current_step()` first and
does what Keras does when there is none, so that plain Keras in the same process is not affected:

- the reduction of a loss, which must divide by the weights of the global batch (`exact_loss`);
- the scaling of a loss by the number of replicas, which our reduction makes superfluous;
- adding a loss, of which several replicas must know whether it is a mean or a sum over rows;
- the clearing of added losses, which must leave those of a replica whose thread is waiting in a collective;
- `int(variable)` and `float(variable)`, which TensorFlow's mirrored variables do not know;
- the handle by which a tape knows a variable: for one that was assigned in this step, what was assigned;
- the seed that a random layer draws, into which the replica's number is mixed;
- the random numbers that a layer draws, which must be the same under XLA (`xla_random`);
- the compiling of a model from a file, which must tell what the file said and what is Keras' default;
- taking rows of a variable, which must not send all of it from a parameter server;
- the moments of synchronized batch normalization, which must not count a borrowed row.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.api_export import REGISTERED_NAMES_TO_OBJS, REGISTERED_OBJS_TO_NAMES
from keras.src.backend.common import global_state
from keras.src.backend.common.variables import Variable as KerasVariable
from keras.src.backend.tensorflow import core as backend_core
from keras.src.backend.tensorflow import nn as backend_nn
from keras.src.backend.tensorflow import numpy as backend_numpy
from keras.src.backend.tensorflow import random as backend_random
from keras.src.backend.tensorflow.trainer import (
    TensorFlowTrainer,
    convert_to_np_if_not_ragged,
    potentially_ragged_concat,
)
from keras.src.losses import loss as loss_module
from keras.src.metrics.reduction_metrics import Mean, MeanMetricWrapper, Sum
from keras.src.models.functional import Functional as KerasFunctional
from keras.src.saving import object_registration, serialization_lib
from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics, MetricsList
from keras.src.trainers.data_adapters.array_slicing import train_validation_split
from keras.src.trainers.data_adapters.data_adapter_utils import (
    class_weight_to_sample_weights,
    unpack_x_y_sample_weight,
)
from keras.src.trainers.trainer import Trainer as KerasTrainer
from keras.src.trainers.trainer import model_supports_jit
from keras.src.utils.python_utils import pythonify_logs
from keras.src.utils.traceback_utils import filter_traceback
from keras.src.utils.tracking import no_automatic_dependency_tracking

from ..distribute.parameter_server_shards import lookup
from ..distribute.replicas import all_reduce_sum_packed, num_replicas
from ..distribute.step_context import current_step
from . import added_losses, exact_loss, xla_random
from .collectives import refuse_collective

__all__ = [
    "CompileLoss",
    "CompileMetrics",
    "KerasFunctional",
    "KerasTrainer",
    "Mean",
    "MeanMetricWrapper",
    "MetricsList",
    "Sum",
    "TensorFlowTrainer",
    "class_weight_to_sample_weights",
    "compute_output_spec",
    "convert_to_np_if_not_ragged",
    "filter_traceback",
    "forget_losses",
    "get_keras_mask",
    "global_seed_generator",
    "model_supports_jit",
    "no_automatic_dependency_tracking",
    "potentially_ragged_concat",
    "pretending_built",
    "pythonify_logs",
    "register_as",
    "save_as",
    "scratch_graph",
    "serialization_lib",
    "set_keras_mask",
    "squeeze_or_expand_to_same_rank",
    "thread_state",
    "train_validation_split",
    "unpack_x_y_sample_weight",
]

global_seed_generator = keras.src.random.seed_generator.global_seed_generator
compute_output_spec = keras.src.backend.compute_output_spec
squeeze_or_expand_to_same_rank = loss_module.squeeze_or_expand_to_same_rank
get_keras_mask = keras.src.backend.get_keras_mask
set_keras_mask = keras.src.backend.set_keras_mask

_SEED_STRIDE = 0x9E3779B1  # 2**32 / golden ratio: neighbouring replicas get distant seeds


def save_as(cls: type, keras_class: type) -> None:
    """Has Keras write objects of `cls` into files as `keras_class`, so that plain Keras opens them without us."""
    name = REGISTERED_OBJS_TO_NAMES[keras_class]
    REGISTERED_OBJS_TO_NAMES[cls] = name
    assert REGISTERED_NAMES_TO_OBJS[name] is keras_class


class thread_state:
    """Keras' global state of this thread, for the threads in which MirroredStrategy runs its replicas.

    `state = thread_state()` in the calling thread; `state.enter()` in the other one. Without it a replica's thread
    would draw unseeded random numbers from a generator of its own and follow another dtype policy.
    """

    def __init__(self) -> None:
        drawn = (
            random.getstate()
        )  # on one device the generator is made, from a random seed, only where one is used
        global_seed_generator()
        random.setstate(drawn)
        self._attributes = dict(vars(global_state.GLOBAL_STATE_TRACKER))

    def enter(self) -> None:
        """Gives this thread the state that was captured; what the thread has itself stays."""
        own = vars(global_state.GLOBAL_STATE_TRACKER)
        for name, value in self._attributes.items():
            if name not in ("stateless_scope", "symbolic_scope", "name_scope_stack"):
                own.setdefault(name, value)


def _replace(module: Any, name: str, make: Any) -> None:
    original = getattr(module, name)
    if not hasattr(original, "__unisono_original__"):
        replacement = functools.wraps(original)(make(original))
        replacement.__unisono_original__ = original
        setattr(module, name, replacement)


def _replace_property(cls: type, name: str, make: Any) -> None:
    original = vars(cls)[name].fget
    if not hasattr(original, "__unisono_original__"):
        replacement = functools.wraps(original)(make(original))
        replacement.__unisono_original__ = original
        setattr(cls, name, property(replacement))


def _reduction(original: Any) -> Any:
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        if not exact_loss.needed():
            return original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        return exact_loss.reduce_weighted_values(values, sample_weight, mask, reduction, dtype)

    return reduce_weighted_values


def _scaling(original: Any) -> Any:
    def scale(value: Any) -> Any:
        return original(value) if current_step() is None else value

    return scale


def _loss_call(original: Any) -> Any:
    def __call__(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if not exact_loss.needed() or num_replicas() == 1 or exact_loss.works_on_rows(self):
            return original(self, y_true, y_pred, sample_weight)
        return exact_loss.on_all_rows(functools.partial(original, self), y_true, y_pred, sample_weight)

    return __call__


def _seed(original: Any) -> Any:
    def next(self: Any, ordered: bool = True) -> Any:
        seed = original(self, ordered)
        step = current_step()
        if step is None or getattr(self, "_unisono_same_on_replicas", False):
            return seed
        stream = step.stream if step.num_replicas == 1 else step.replica_id
        if stream is None:
            return seed
        stride = tf.constant([_SEED_STRIDE, 0], tf.int64) * tf.cast(stream, tf.int64)
        mixed = tf.cast(tf.cast(seed, tf.int64) + stride, tf.uint32)
        return tf.cast(mixed, seed.dtype)

    return next


def _handle(original: Any) -> Any:
    def handle(self: Any) -> Any:
        value = self.value
        return value if isinstance(value, tf.Tensor) and current_step() is not None else original(self)

    return handle


def _add_loss(original: Any) -> Any:
    def add_loss(self: Any, loss: Any) -> None:
        step = current_step()
        if step is None:
            added_losses.noted(self, loss)
        elif step.num_replicas > 1:
            loss = added_losses.in_units_of_a_mean(self, loss, step)
        original(self, loss)

    return add_loss


def _number(kind: type) -> Any:
    def make(original: Any) -> Any:
        def convert(self: Any) -> Any:
            copied = isinstance(self._value, tf.distribute.DistributedValues) and self.ndim == 0
            return kind(self.numpy()) if copied else original(self)

        return convert

    return make


def _synchronized_moments(original: Any) -> Any:
    def moments(x: Any, axes: Any, keepdims: Any) -> Any:
        step = current_step()
        if step is None:
            return original(x, axes, keepdims)
        refuse_collective("a synchronized BatchNormalization")
        alive = tf.cast(step.alive, x.dtype)
        total = tf.reduce_sum(x, axis=axes, keepdims=True)
        count = tf.reduce_sum(tf.ones_like(x), axis=axes, keepdims=True)
        total, count = all_reduce_sum_packed([total * alive, count * alive])
        mean = total / count
        (squares,) = all_reduce_sum_packed(
            [tf.reduce_sum(tf.math.squared_difference(x, mean), axis=axes, keepdims=True) * alive]
        )
        variance = squares / count
        if keepdims:
            return mean, variance
        return tf.squeeze(mean, axes), tf.squeeze(variance, axes)

    return moments


def _clear_losses(original: Any) -> Any:
    def clear(self: Any) -> None:
        step = current_step()
        if step is None or step.num_replicas == 1 or step.writes is None:
            original(self)
            return
        losses = step.writes.losses
        for layer in self._flatten_layers():  # the ids of another replica, whose thread is waiting, must stay
            mine = {id(loss) for loss in losses} & layer._loss_ids
            losses[:] = [loss for loss in losses if id(loss) not in mine]
            layer._loss_ids -= mine

    return clear


def forget_losses(model: Any, losses: list[Any]) -> None:
    """Layers drop the added losses of a step that has been traced (their ids may be given to other tensors)."""
    ids = {id(loss) for loss in losses}
    for layer in model._flatten_layers():
        layer._loss_ids.difference_update(ids)


def _noting_arguments(original: Any) -> Any:
    def compile_from_config(self: Any, config: dict[str, Any]) -> None:
        original(self, config)
        object.__setattr__(self, "_arguments_in_file", dict(config or {}))

    return compile_from_config


def _take(original: Any) -> Any:
    def take(x: Any, indices: Any, axis: Any = None) -> Any:
        if isinstance(x, keras.Variable) and axis == 0 and not isinstance(indices, tf.SparseTensor):
            rows = None if x._value is None else lookup(x, indices)
            if rows is not None:
                return x._maybe_autocast(rows)
        return original(x, indices, axis)

    return take


def _seed_of(seed: Any) -> Any:
    return backend_random._cast_seed(keras.src.random.seed_generator.draw_seed(seed))


def _uniform(original: Any) -> Any:
    def uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
        dtype = dtype or keras.config.floatx()
        if not xla_random.spelled_out(dtype):
            return original(shape, minval, maxval, dtype, seed)
        minval, maxval = tf.cast(minval, dtype), tf.cast(maxval, dtype)
        return xla_random.uniform(shape, _seed_of(seed), dtype) * (maxval - minval) + minval

    return uniform


def _normal(original: Any) -> Any:
    def normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
        dtype = dtype or keras.config.floatx()
        if not xla_random.spelled_out(dtype):
            return original(shape, mean, stddev, dtype, seed)
        return xla_random.normal(shape, _seed_of(seed), dtype) * tf.cast(stddev, dtype) + tf.cast(mean, dtype)

    return normal


def _dropout(original: Any) -> Any:
    def dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        if rate in (0.0, 1.0) or not xla_random.spelled_out(inputs.dtype):
            return original(inputs, rate, noise_shape, seed)
        seed = _seed_of(seed)
        noise_shape = backend_random._get_concrete_noise_shape(inputs, noise_shape)
        return xla_random.dropout(inputs, rate, noise_shape, seed)

    return dropout


_replace(KerasVariable, "__int__", _number(int))
_replace(KerasVariable, "__float__", _number(float))
_replace_property(backend_core.Variable, "handle", _handle)
_replace(backend_random, "uniform", _uniform)
_replace(backend_random, "normal", _normal)
_replace(backend_random, "dropout", _dropout)
_replace(backend_numpy, "take", _take)
_replace(keras.layers.Layer, "_clear_losses", _clear_losses)
_replace(keras.layers.Layer, "add_loss", _add_loss)
_replace(KerasTrainer, "compile_from_config", _noting_arguments)
_replace(loss_module, "reduce_weighted_values", _reduction)
_replace(loss_module, "scale_loss_for_distribution", _scaling)
_replace(loss_module, "unscale_loss_for_distribution", _scaling)
_replace(loss_module.Loss, "__call__", _loss_call)
_replace(keras.src.random.seed_generator.SeedGenerator, "next", _seed)
_replace(backend_nn, "_compute_moments_sync", _synchronized_moments)


def register_as(cls: type, original: type) -> None:
    """Files written from `cls` name `original`: the Keras class, or the class that a user registered."""
    if original in REGISTERED_OBJS_TO_NAMES:
        save_as(cls, original)
    if original in object_registration.GLOBAL_CUSTOM_NAMES:
        object_registration.GLOBAL_CUSTOM_NAMES[cls] = object_registration.GLOBAL_CUSTOM_NAMES[original]


@contextlib.contextmanager
def scratch_graph() -> Iterator[None]:
    """A graph that is thrown away: for reading structure from code that creates operations."""
    with tf.__internal__.FuncGraph("scratch").as_default():
        yield


@contextlib.contextmanager
def pretending_built(optimizer: Any) -> Iterator[None]:
    """Keeps Keras' symbolic build from making the variables of an optimizer that the user's step may never use."""
    object.__setattr__(optimizer, "built", True)
    try:
        yield
    finally:
        object.__setattr__(optimizer, "built", False)
