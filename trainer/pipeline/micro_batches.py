"""The micro-batches of a step: their samples, outputs, and the state that layers write in each of them."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import is_own, layers_of, own_state
from ...compat.keras_private.seed_generators import global_seed_generator_state
from ...compat.keras_private.variables import raw_value
from ...compat.upstream_places import get_keras_mask, set_keras_mask
from ...distribute.step_context import StepContext
from ..inputs.batch import concat_samples, is_scalar, sample_count, slice_samples
from ..step.collected_writes import CollectedWrites
from ..step.replica_slices import or_first_sample, replica_bounds
from .planning.graph import Stage


def micro_steps(global_samples: Any, count: int) -> list[StepContext]:
    """Return the Q micro-batches of a global batch: like replicas, also for random layers."""
    bounds = [replica_bounds(global_samples, count, q) for q in range(count)]
    return [StepContext(q, count, last - first, global_samples) for q, (first, last) in enumerate(bounds)]


def micro_slices(structure: Any, steps: Sequence[StepContext]) -> list[Any]:
    """Return the samples of each micro-batch; sample 0 for an empty one."""
    if len(steps) == 1:
        return [structure]
    bounds = [or_first_sample(step.samples_before, step.samples_before + step.samples) for step in steps]
    return [slice_samples(structure, first, last) for first, last in bounds]


def concat_micro_batches(parts: Sequence[Any], steps: Sequence[StepContext]) -> Any:
    """Return an output of the whole batch, with its Keras mask, without the borrowed samples of empty micro-batches."""
    if len(parts) == 1:
        return parts[0]

    def concat(values: Sequence[Any]) -> Any:
        return concat_samples([_own(value, step) for value, step in zip(values, steps)])

    whole, masks = concat(parts), [get_keras_mask(part) for part in parts]
    if all(mask is not None for mask in masks):
        set_keras_mask(whole, concat(masks))
    return whole


def _own(value: Any, step: StepContext) -> Any:
    """Return the part of a tensor for the samples of a micro-batch. A scalar is one entry for the micro-batch."""
    if is_scalar(value):
        return value[None]
    return value if step.alive is True else value[: tf.where(step.alive, sample_count(value), 0)]


State = dict[int, tuple[Any, Any]]  # a variable's id -> the variable and its value


class MicroBatchStates:
    """Owns the writes of each micro-batch in a step, and reduces them to one value; `steps` are those of all replicas."""

    def __init__(self, stages: Sequence[Stage], steps: Sequence[StepContext]) -> None:
        self._steps = steps
        self._stage_of = {id(variable): stage for stage in stages for variable in stage.weights}
        random_states = [v for stage in stages for v in stage.random_states]
        unseeded = global_seed_generator_state()
        random_states += [] if unseeded is None else [unseeded]
        self._start: State = {id(v): (v, tf.convert_to_tensor(v.value)) for v in random_states}
        self._random: list[State] = [dict(self._start) for _ in steps]
        self._written: list[State] = [{} for _ in steps]
        self._other: State = {}
        layers = [part for stage in stages for layer in stage.layers for part in layers_of(layer)]
        self._in_user_code = {id(v) for layer in layers if is_own(layer) for v in own_state(layer)}
        self._normalizations = {
            id(layer.moving_variance): layer
            for layer in layers
            if isinstance(layer, keras.layers.BatchNormalization) and layer.built and not layer.renorm
        }

    def of(self, q: int) -> State:
        """Return the values that micro-batch q reads besides weights: its random state, and other micro-batches' writes."""
        return {**self._other, **self._random[q]}

    def note(self, q: int, scope: CollectedWrites) -> None:
        """Record the writes of a pass of micro-batch q; reject writes to trainable variables, which have a gradient."""
        for variable, value in scope.items():
            if id(variable) in self._start:
                self._random[q][id(variable)] = variable, value
            elif id(variable) not in self._stage_of:
                self._other[id(variable)] = variable, value
            elif variable.trainable:
                raise ValueError(
                    f"{variable.path!r} is trainable and assigned by a layer's call, which a pipeline cannot do "
                    f"exactly: make it trainable=False, or train without a Pipeline"
                )
            else:
                self._written[q][id(variable)] = variable, value

    def writes(self) -> list[tuple[Any, tf.Tensor]]:
        """Return (variable, value) pairs: averages over micro-batches, random state of the first, the last other state."""
        result: list[tuple[Any, Any]] = []
        for key, (variable, _) in self._written[0].items():
            with tf.device(self._stage_of[key].devices[0]):
                result.append((variable, self._reduce(variable)))
        drawn = [pair for key, pair in self._random[0].items() if pair[1] is not self._start[key][1]]
        return result + drawn + list(self._other.values())

    def _values(self, variable: Any) -> list[tf.Tensor]:
        return [written[id(variable)][1] for written in self._written]

    def _reduce(self, variable: Any) -> tf.Tensor:
        """Reduce a variable's values by its `aggregation`; else by the mean of floats, or the first of others."""
        values = self._values(variable)
        if len(values) == 1:
            return values[0]
        layer = self._normalizations.get(id(variable))
        if layer is not None and id(layer.moving_mean) in self._written[0]:
            means = self._values(layer.moving_mean)
            return variance_of_batch(values, means, layer.momentum, self._steps)
        rule = variable.aggregation
        if rule in (None, "none"):
            if id(variable) in self._in_user_code:
                return _equal(variable, values, self._steps)
            rule = "mean" if values[0].dtype.is_floating else "only_first_replica"
        if rule == "only_first_replica":
            return _first(values, self._steps)
        if rule == "sum":
            old = tf.convert_to_tensor(raw_value(variable))
            added = [tf.where(s.alive, v - old, tf.zeros_like(old)) for v, s in zip(values, self._steps)]
            return old + tf.add_n(added)
        return _mean(values, self._steps)


def variance_of_batch(
    variances: Sequence[tf.Tensor], means: Sequence[tf.Tensor], momentum: float, steps: Sequence[StepContext]
) -> tf.Tensor:
    r"""Return the moving variance after a batch of which each micro-batch has updated a separate copy.

    With :math:`s_q` the shares and :math:`\mu` the momentum, micro-batch q has made :math:`v_q = \mu v + (1 - \mu)
    Var_q` and :math:`m_q = \mu m + (1 - \mu) Mean_q` of the averages v and m. The variance of all samples is that
    within the micro-batches and that of their means, so

    .. math:: v' = \sum_q s_q v_q + \frac{1}{1 - \mu} \sum_q s_q (m_q - m')^2, \quad m' = \sum_q s_q m_q

    Source: GPipe's batch normalization accumulates count, sum and sum of squares over the micro-batches.
    """
    if momentum >= 1.0:
        return _mean(variances, steps)
    centre = _mean(means, steps)
    between = _mean([tf.math.squared_difference(m, centre) for m in means], steps)
    return _mean(variances, steps) + between / (1.0 - momentum)


def _mean(values: Sequence[tf.Tensor], steps: Sequence[StepContext]) -> tf.Tensor:
    """Return the mean over the samples of all micro-batches; of integers, rounded."""
    dtype = values[0].dtype
    wide = dtype if dtype.is_floating else tf.float64
    weighted = [tf.math.multiply_no_nan(tf.cast(v, wide), s.share(wide)) for v, s in zip(values, steps)]
    mean = tf.add_n(weighted)
    return mean if dtype.is_floating else tf.cast(tf.round(mean), dtype)


def _first(values: Sequence[tf.Tensor], steps: Sequence[StepContext]) -> tf.Tensor:
    """Return the value of the first micro-batch that has samples."""
    first = values[-1]
    for value, step in zip(reversed(values), reversed(steps)):
        first = tf.where(step.alive, value, first)
    return first


def _equal(variable: Any, values: Sequence[tf.Tensor], steps: Sequence[StepContext]) -> tf.Tensor:
    """Return the common value of all micro-batches for a variable of user code; raise if they differ."""
    first = _first(values, steps)
    equal = [tf.reduce_all(tf.equal(tf.where(s.alive, v, first), first)) for v, s in zip(values, steps)]
    message = (
        f"The micro-batches of a pipeline assign different values to {variable.path!r}, which declares no reduction: "
        'declare it with `add_weight(aggregation="mean")`, "sum" or "only_first_replica".'
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(equal), [message])]):
        return tf.identity(first)
