"""Stages 4 and 5 on whole gradients, with Keras' hooks around an update rule, on this replica's copies.

There is no `merge_call`, so conditionals are free.

A rule also runs on variables or optimizer state that are sharded by rows of a matrix, each shard on its device, if possible:
on parameter servers a variable and its state are sharded, in a pipeline with replicas the state alone.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import (
    averages_of,
    decays,
    know_variable,
    own_learning_rate,
    state_of,
    trained_variables,
    variable_key,
)
from ...compat.keras_private.variables import collects_writes, direct_writes, replace_value, use_name_of
from ...compat.tensorflow_graphs.copied_operations import TracedOnce
from ...compat.tensorflow_graphs.equal_operations import reuse_equal_operations
from ...distribute.parameter_servers.shards import rows_of
from ...distribute.parameter_servers.updates import colocate_with, shards_of
from ...distribute.replicas import in_replica_context, local_copy
from ...distribute.sharding.row_sharding import rows_per_shard, state_devices
from ...distribute.sharding.sharded_value import TensorInPlace, own_copy
from .. import optimizer_checks
from ..hyperparameters import check_learning_rate
from ..stages import clipping
from ..stages.aggregators import without_overwriting
from ..stages.call_options import freeze_iterations
from ..stages.sparse_gradients import Pairs, is_sparse, values_of
from ..stages.user_code import is_elementwise, is_of_keras, needs_no_names, write_where


class ReplicaRule(keras.optimizers.Optimizer):
    """How an update rule reads and writes: assignments, clipping, weight decay, moving averages, the learning rate.

    Context: its methods run where variables are written (`distribute.replicas.once_per_copy`). Elsewhere in a step, such as
    in a user's `apply`, an assignment is collected like any other write to a Keras variable.
    """

    def assign(self, variable: Any, value: Any) -> None:
        """Write this replica's copy."""
        self._write("assign", variable, value)

    def assign_add(self, variable: Any, value: Any) -> None:
        """Add to this replica's copy."""
        self._write("assign_add", variable, value)

    def assign_sub(self, variable: Any, value: Any) -> None:
        """Subtract from this replica's copy."""
        self._write("assign_sub", variable, value)

    def _write(self, method: str, variable: Any, value: Any) -> None:
        collected = isinstance(variable, keras.Variable) and collects_writes() and not is_sparse(value)
        if collected:
            getattr(variable, method)(value)
        else:
            getattr(super(), method)(_copy(variable), value)

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        on_device: dict[Any, dict[Any, Any]] = {}
        traced, state, nameless = TracedOnce(), state_of(self), needs_no_names(self)
        for gradient, variable in zip(grads, trainable_variables):
            own_state = [own_copy(each) for each in state(variable)]
            for part, copy in _updates_of(self, gradient, variable, own_copy(variable)):
                with reuse_equal_operations(on_device.setdefault(getattr(copy, "device", None), {})):
                    if nameless and isinstance(part, tf.Tensor) and part.shape == copy.shape:
                        rule = functools.partial(self.update_step, part, copy, learning_rate)
                        traced(rule, [part, copy, *own_state])
                    else:
                        with use_name_of(copy, variable):
                            self.update_step(part, copy, learning_rate)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        if self.clipnorm:
            return clipping.by_norm(grads, self.clipnorm)
        if self.global_clipnorm:
            return clipping.by_global_norm(grads, self.global_clipnorm)
        if self.clipvalue:
            return clipping.by_value(grads, self.clipvalue)
        return list(grads)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        if self.weight_decay is None:
            return
        traced = TracedOnce(is_of_keras(self))

        def decay(copy: Any) -> None:
            rate = tf.cast(self.learning_rate, copy.dtype) * tf.cast(self.weight_decay, copy.dtype)
            copy.assign_sub(copy * rate)

        for variable in variables:
            whole = getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable
            if decays(self, whole):
                copy = own_copy(variable)
                traced(functools.partial(decay, copy), [copy])

    def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
        if not self.use_ema:
            return
        started, traced = tf.not_equal(self.iterations, 0), TracedOnce()

        def move(mean: Any, copy: Any) -> None:
            momentum = tf.cast(started, copy.dtype) * self.ema_momentum
            mean.assign(momentum * mean + (1 - momentum) * copy)

        for variable, average in zip(trainable_variables, averages_of(self)):
            if average is not None:
                copy, mean = local_copy(variable), local_copy(average)
                traced(functools.partial(move, mean, copy), [mean, copy])

    def overwrite_with_average_when_due(self) -> None:
        """Replace the weights by their moving average at every `ema_overwrite_frequency` updates."""
        if not (self.use_ema and self.ema_overwrite_frequency):
            return
        variables = trained_variables(self)
        iterations: Any = self.iterations
        due = (iterations + 1) % self.ema_overwrite_frequency == 0
        write_where(
            due, self, variables, lambda: self._overwrite_model_variables_with_average_value(variables)
        )

    def _overwrite_model_variables_with_average_value(self, trainable_variables: Sequence[Any]) -> None:
        with direct_writes():
            for variable, average in zip(trainable_variables, averages_of(self)):
                if average is not None:
                    _copy(variable).assign(_copy(average))

    def _get_current_learning_rate(self) -> Any:
        rate = own_learning_rate(self)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return rate(self.iterations)
        return super()._get_current_learning_rate()

    @keras.optimizers.Optimizer.learning_rate.setter  # type: ignore[attr-defined]
    def learning_rate(self, value: Any) -> None:
        """As `keras.optimizers.Optimizer.learning_rate`, checked when it is set."""
        check_learning_rate(value)
        keras.optimizers.Optimizer.learning_rate.fset(self, value)  # type: ignore[attr-defined]

    def find_learning_rate(self, variables: Sequence[Any]) -> Any:
        """Return the learning rate of this update; read once where no variable needs another dtype."""
        rate = self.learning_rate
        if isinstance(rate, keras.Variable) and all(
            tf.as_dtype(v.dtype) == tf.as_dtype(rate.dtype) for v in variables
        ):
            return tf.identity(local_copy(rate))
        return rate


def _copy(variable: Any) -> Any:
    """Return the copy to write: this replica's in replica context, else the variable with all its copies."""
    if in_replica_context():
        return local_copy(variable)
    return variable.value if isinstance(variable, keras.Variable) else variable


def _updates_of(optimizer: Any, gradient: Any, variable: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments of `update_step`: (gradient, variable) once, or once for each shard, on its device.

    A rule that treats each number by itself is run on each shard with its shard of the state. Any other sees the whole.
    `copy` is the local copy of the whole variable.
    """
    shards = shards_of(copy)
    if state_devices(variable) and is_elementwise(optimizer):
        yield from _next_to_state(optimizer, gradient, variable, copy)
        return
    if shards is None or not is_elementwise(optimizer):
        with colocate_with(copy):
            yield gradient, copy
        return
    first = 0
    for index, shard in enumerate(shards):
        rows = rows_of(shard)
        with colocate_with(shard), _state_of_shard(optimizer, index):
            yield _rows_of(gradient, first, rows), shard
        first += rows


def _next_to_state(optimizer: Any, gradient: Any, variable: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the shards of a whole variable whose state is sharded by matrix rows; write the new ones at once."""
    first, new = 0, []
    whole, key = tf.convert_to_tensor(copy), variable_key(optimizer, variable)
    for index, (device, rows) in enumerate(zip(state_devices(variable), rows_per_shard(variable))):
        with tf.device(device), _state_of_shard(optimizer, index):
            place = TensorInPlace(key, whole[first : first + rows], copy)
            yield _rows_of(gradient, first, rows), place
        new.append(place)
        first += rows
    with tf.device(copy.device):
        copy.assign(tf.concat([place.tensor for place in new], 0))


def _rows_of(gradient: Any, first: int, rows: int) -> Any:
    if not is_sparse(gradient):
        return gradient[first : first + rows]
    inside = tf.logical_and(gradient.indices >= first, gradient.indices < first + rows)
    indices = tf.boolean_mask(gradient.indices, inside) - first
    shape = tf.constant([rows, *gradient.values.shape.as_list()[1:]], tf.int64)  # pyright: ignore[reportArgumentType]
    return tf.IndexedSlices(tf.boolean_mask(gradient.values, inside), indices, shape)


@contextlib.contextmanager
def _state_of_shard(optimizer: Any, index: int) -> Iterator[None]:
    """Use the state of one shard while its rule is traced."""
    with contextlib.ExitStack() as stack:
        for state in optimizer.variables:
            shards = shards_of(state) or ()
            if len(shards) > index:
                stack.enter_context(replace_value(state, shards[index]))
        yield


def register_shards(optimizer: Any, variables: Sequence[Any]) -> None:
    """Let the optimizer find the state of a variable by each of its shards. Context: host, after `build`."""
    for index, variable in enumerate(variables):
        for shard in shards_of(variable) or ():
            know_variable(optimizer, shard, index)


def transform_and_apply(optimizer: Any, pairs: Pairs) -> None:
    """Run stages 4 and 5: write the weights and the optimizer state, in Keras' order."""
    with freeze_iterations(optimizer):
        pairs, overwriting = without_overwriting(pairs)
        pairs = transform(optimizer, pairs)
        for gradient, variable in overwriting:
            optimizer.assign(variable, gradient)
        if pairs:
            gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
            with once_there_is_one(pairs):
                optimizer._apply_weight_decay(variables)
            optimizer._backend_update_step(gradients, variables, optimizer.find_learning_rate(variables))
        optimizer._update_model_variables_moving_average(trained_variables(optimizer))
        optimizer.overwrite_with_average_when_due()
        constrain([v for _, v in pairs])


def transform(optimizer: Any, pairs: Pairs) -> Pairs:
    """Run stage 4: the transformers in order, then clipping, on aggregated, unscaled gradients of all variables."""
    for transformer in optimizer.gradient_transformers:
        pairs = optimizer_checks.same_variables(
            transformer, "gradient_transformers", pairs, transformer(list(pairs))
        )
    return clip(optimizer, pairs)


def clip(optimizer: Any, pairs: Pairs) -> Pairs:
    """Return the pairs with gradients clipped as the arguments of the optimizer say."""
    clipped = optimizer._clip_gradients([g for g, _ in pairs])
    return [(g, v) for g, (_, v) in zip(clipped, pairs)]


def constrain(variables: Sequence[Any]) -> None:
    """Apply the constraints of variables to this replica's copies."""
    for variable in variables:
        if variable.constraint is not None:
            copy = local_copy(variable)
            copy.assign(apply_constraint(variable, copy))


def apply_constraint(variable: Any, value: Any) -> Any:
    """Return what its constraint makes of a Keras variable, in which it reads `value`."""
    with use_name_of(value, variable), replace_value(variable, value):
        return variable.constraint(variable)


def once_there_is_one(pairs: Pairs) -> Any:
    """Let writes that need no gradient wait for one, so that a step that fails at its data changes nothing.

    It is the last variable's, the first that a chain of layers has. Waiting for all would delay the next step.
    """
    return tf.control_dependencies([values_of(gradient) for gradient, _ in pairs[-1:]])
