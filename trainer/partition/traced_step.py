"""A step with code of the user's: traced once as one device, and run on every replica as it was partitioned."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import layers_of
from ...compat.one_device import distributed_variable, traced_on_one_device
from ...compat.variables import is_read_together, raw_value, sums_on_read
from ...distribute.gathering import gather_samples
from ...distribute.replicas import (
    all_reduce_sum_packed,
    local_copy,
    local_replica_index,
    once_per_copy,
    shares_variables,
)
from ...distribute.sharding.sharded_value import ShardedValue, TensorInPlace, seen_through
from ...distribute.step_context import NOT_AGGREGATED, StepContext, WeightTotals, step_scope, this_step
from ...optimizers.adoption import adopt
from ...optimizers.call_options import CallOptions, call_options, current_options
from ...optimizers.held_optimizers import optimizers_of
from ...optimizers.stages.aggregated_gradients import after_aggregation
from ...optimizers.stages.user_code import apply_of
from ..checks import checked_logs
from ..inputs.rows import row_count
from ..step.collected_writes import CollectedWrites
from ..step.variable_placement import accumulates
from .builder import APPLY, READ
from .conversions import Exchange, Replica, Request
from .errors import NotPartitioned
from .labels import MEAN_OF_STATISTICS, PARTIAL_SUM, REPLICATED, SAMPLES, is_sharded
from .partition import partitioned
from .program import Program
from .rebuild import rebuilt


@dataclasses.dataclass
class Application:
    """A call of an optimizer in a step.

    Attributes:
        optimizer: which.
        variables: that it was given.
        kinds: of each gradient: "none", "dense" or "slices", whose values and indices are two tensors.
        written: variables that the step has assigned before.
        is_weighted: whether the last tensor is what the loss was divided by.
        options: of the call.
    """

    optimizer: Any
    variables: list[Any]
    kinds: list[str]
    written: list[keras.Variable]
    is_weighted: bool
    options: CallOptions

    def pairs(self, tensors: Sequence[tf.Tensor]) -> tuple[list[Any], list[Any]]:
        """The gradients and their variables."""
        rest, gradients = iter(tensors), []
        for kind, variable in zip(self.kinds, self.variables):
            if kind == "slices":
                shape = tf.constant(tuple(variable.shape), tf.int64)
                gradients.append(tf.IndexedSlices(next(rest), next(rest), shape))
            else:
                gradients.append(None if kind == "none" else next(rest))
        return gradients, self.variables


class TracedStep:
    """One step of a model for one layout of its batches.

    Args:
        model: the model.
        step_fn: `fn(data)`: its logs, or the outputs of `predict_step`.
        spec: nest of `tf.TensorSpec` and None: of a global batch.
        name: of the step: "train_step", "test_step" or "predict_step".

    Raises:
        NotPartitioned: the step cannot be partitioned.

    Context: any; it is traced outside of the graph that is being made.
    """

    def __init__(self, model: TrainedModel, step_fn: Callable[[Any], Any], spec: Any, name: str) -> None:
        self._model, self._step_fn, self._spec = model, step_fn, spec
        self._predicts, training = name == "predict_step", name == "train_step"
        self._own_logs = not self._predicts and model._has_own_logs(training)
        self._weighs_losses = training and accumulates(model.optimizer)
        self._applications: list[Application] = []
        self._reads: list[ShardedValue] = []
        self._logs: Any = {}
        self._variables: list[keras.Variable] = []
        leaves = [leaf for leaf in tf.nest.flatten(spec) if leaf is not None]
        if not all(isinstance(leaf, tf.TensorSpec) for leaf in leaves):
            raise NotPartitioned("ragged and sparse inputs are not partitioned")
        specs = [tf.TensorSpec([None, *s.shape[1:]] if s.shape.rank else [], s.dtype) for s in leaves]
        graph = traced_on_one_device(self._trace, specs)
        logs = len(tf.nest.flatten(self._logs))
        self._partial = {
            index
            for index, variable in enumerate(self._variables)
            if sums_on_read(raw_value(variable)) and not shares_variables(model.distribute_strategy)
        }
        wanted = [SAMPLES if self._predicts else REPLICATED] * logs
        wanted += [
            PARTIAL_SUM if n in self._partial else MEAN_OF_STATISTICS for n in range(len(self._variables))
        ]
        slices = {
            n: [kind == "slices" for kind in a.kinds if kind != "none"]
            for n, a in enumerate(self._applications)
        }
        shares = shares_variables(model.distribute_strategy)
        self.program: Program = partitioned(
            graph,
            len(leaves),
            wanted,
            lambda handle: not shares and _sums_on_read(handle),
            slices,
            _statistics_of(model),
        )

    def _trace(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        rest = iter(tensors)
        batch = tf.nest.map_structure(lambda leaf: None if leaf is None else next(rest), self._spec)
        rows = row_count(batch)
        step = StepContext(0, 1, rows, rows, totals=WeightTotals() if self._weighs_losses else None)
        step.take_gradients = self._take
        if any(each.gradient_aggregator is not None for each in map(adopt, optimizers_of(self._model))):
            step.notes[NOT_AGGREGATED] = NotPartitioned(
                "it calls `aggregate_gradients` of an optimizer that has a `gradient_aggregator`"
            )
        seen = functools.partial(self._seen, tf.compat.v1.get_default_graph())
        with step_scope(step), seen_through(seen), CollectedWrites() as writes:
            step.writes = writes
            logs = self._step_fn(batch)
            if not self._predicts:
                name = getattr(self._step_fn, "__name__", "train_step")
                logs = checked_logs(logs, name) if self._own_logs else {}
            self._logs = keras.tree.map_structure(
                tf.convert_to_tensor, logs
            )  # can be variables that the step has written
        self._variables = [variable for variable, _ in writes.items()]
        return [*tf.nest.flatten(self._logs), *(value for _, value in writes.items())]

    def _seen(self, graph: Any, weight: ShardedValue) -> TensorInPlace:
        """What stands for a sharded weight that the step reads."""
        with graph.as_default(), tf.control_dependencies(None):
            name = f"{READ}{len(self._reads)}"
            whole = tf.compat.v1.placeholder(weight.dtype, weight.shape, name=name)
        self._reads.append(weight)
        return TensorInPlace(weight.key, whole, weight.name)

    def _take(self, optimizer: Any, pairs: Any) -> None:
        pairs, options = after_aggregation(optimizer, list(pairs), current_options())
        options = dataclasses.replace(options, skip_aggregation=False, contributions=True)
        tensors, kinds = [], []
        for gradient, _ in pairs:
            if isinstance(gradient, tf.IndexedSlices):
                kinds.append("slices")
                tensors += [gradient.values, gradient.indices]
            else:
                kinds.append("none" if gradient is None else "dense")
                tensors += [] if gradient is None else [tf.convert_to_tensor(gradient)]
        writes, number = this_step().writes, len(self._applications)
        written = [v for _, v in pairs if id(v) in writes.variables]
        tensors += [tf.convert_to_tensor(writes.state_mapping[id(v)]) for v in written]
        writes.forget(written)
        weight = this_step().weight_total
        tensors += [] if weight is None else [tf.convert_to_tensor(weight)]
        variables = [v for _, v in pairs]
        self._applications.append(
            Application(optimizer, variables, kinds, written, weight is not None, options)
        )
        if tensors:
            tf.raw_ops.IdentityN(input=tensors, name=f"{APPLY}{number}")

    def __call__(self, data: Any) -> Any:
        """Runs the step on a replica's samples; returns its logs, the same on every replica, or the outputs for them.

        Outputs that are the same on every replica are those of the first one with samples.

        Context: replica, inside of a step that collects writes.
        """
        step = this_step()
        leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
        held = (
            max(step.rows, 1) if isinstance(step.rows, int) else tf.maximum(step.rows, 1)
        )  # one is borrowed
        replica = Replica(
            int(step.replica_id), step.rows, held, step.global_rows, step.rows_before, local_replica_index()
        )
        read = lambda number: self._reads[number].read_value()  # noqa: E731
        run = rebuilt(self.program, leaves, replica, self._apply, read)
        outputs = _with_collectives(run)
        logs = len(tf.nest.flatten(self._logs))
        self._write(outputs[logs:], step)
        found = outputs[:logs]
        if self._predicts:
            labels = [self.program.values[number].label for number in self.program.outputs]
            found = [t if is_sharded(v) else _if_first(t, step) for t, v in zip(found, labels)]
        return tf.nest.pack_sequence_as(self._logs, found)

    def _apply(self, number: int, tensors: list[tf.Tensor]) -> None:
        application = self._applications[number]
        weight = tensors.pop() if application.is_weighted else None
        count = len(tensors) - len(application.written)
        gradients, variables = application.pairs(tensors[:count])
        for variable, value in zip(application.written, _of_first(tensors[count:])):
            this_step().writes.add_update((variable, value))
        with call_options(dataclasses.replace(application.options, weight_total=weight)):
            apply_of(application.optimizer)(gradients, variables)

    def _write(self, values: list[tf.Tensor], step: StepContext) -> None:
        """Writes what the step has assigned, if it was not skipped; numbers of all replicas are the first one's."""
        applied = step.applied
        floating = [
            n
            for n, v in enumerate(values)
            if n not in self._partial and (v.dtype.is_floating or v.dtype.is_complex)
        ]
        for number, value in zip(floating, _of_first([values[n] for n in floating])):
            values[number] = value

        def write(new: list[tf.Tensor], applied: Any) -> None:
            for variable, value in zip(self._variables, new):
                copy = local_copy(variable)
                copy.assign(value if applied is None else tf.where(applied, value, copy))

        once_per_copy(write)(values, applied)


def _if_first(output: tf.Tensor, step: StepContext) -> tf.Tensor:
    return output[: tf.where(step.holds_first_row, tf.shape(output)[0], 0)]


def _of_first(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """The values of the first replica, on every replica: others may have rounded in another way."""
    if not values:
        return []
    first = this_step().holds_first_row
    return all_reduce_sum_packed([tf.where(first, value, tf.zeros_like(value)) for value in values])


def _statistics_of(model: Any) -> Callable[[tf.Operation], bool]:
    """Whether an operation was made for a `BatchNormalization` that is not synchronized: by its name scope."""
    names = {
        layer.name
        for layer in layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    }

    def is_statistic(op: tf.Operation) -> bool:
        scopes = op.name.split("/")[:-1]
        return not (names.isdisjoint(scopes) and names.isdisjoint(re.sub(r"_\d+$", "", s) for s in scopes))

    return is_statistic if names else lambda op: False


def _sums_on_read(handle: Any) -> bool:
    variable = distributed_variable(handle)
    if variable is not None and is_read_together(variable) and not sums_on_read(variable):
        raise NotPartitioned("it reads a variable whose copies differ and are not parts of a sum")
    return sums_on_read(variable)


def _with_collectives(run: Exchange) -> list[tf.Tensor]:
    """Runs a replica's step; what it asks of all is exchanged by the collectives of its strategy."""
    answers: Any = None
    while True:
        try:
            requests = run.send(answers)
        except StopIteration as end:
            return end.value
        answers = _answers(requests)


def _answers(requests: list[Request]) -> list[tf.Tensor]:
    answers: list[Any] = [None] * len(requests)
    summed = [n for n, request in enumerate(requests) if request.axis is None]
    if not all(requests[n].tensor.shape.is_fully_defined() for n in summed):
        this_step().shapes_vary = True
    for number, total in zip(summed, all_reduce_sum_packed([requests[n].tensor for n in summed])):
        answers[number] = total
    for number, request in enumerate(requests):
        if request.axis is not None:
            answers[number] = _concatenated(request.tensor, request.axis)
    return answers


def _concatenated(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    order = [axis, *(n for n in range(tensor.shape.rank) if n != axis)]
    moved = tensor if axis == 0 else tf.transpose(tensor, order)
    whole = gather_samples(moved)
    return whole if axis == 0 else tf.transpose(whole, [order.index(n) for n in range(len(order))])
