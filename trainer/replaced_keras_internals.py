"""The functions of Keras that are replaced; `tests/unit/test_keras_internals.py` fails when one of them changes.

Each is replaced once, when this module is imported, and asks `current_step()` first: it does what Keras does when there is
none, so that plain Keras in the same process is not affected.

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

import functools
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.variables import Variable as KerasVariable
from keras.src.backend.tensorflow import core as backend_core
from keras.src.backend.tensorflow import nn as backend_nn
from keras.src.backend.tensorflow import numpy as backend_numpy
from keras.src.backend.tensorflow import random as backend_random
from keras.src.losses import loss as loss_module

from ..distribute.parameter_servers.shards import lookup
from ..distribute.replicas import all_reduce_sum_packed, num_replicas
from ..distribute.step_context import current_step
from .keras_internals import KerasTrainer
from .step import added_losses, xla_random
from .step import global_loss as exact_loss
from .step.collectives import refuse_collective

_SEED_STRIDE = 0x9E3779B1  # 2**32 / golden ratio: neighbouring replicas get distant seeds


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
