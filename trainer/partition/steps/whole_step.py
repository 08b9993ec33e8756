"""A step with user code that is not partitioned: the first replica computes it on the whole batch, like a single device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ....compat.keras_private.variables import raw_value, sums_on_read
from ....compat.tensorflow_graphs.one_device import as_on_one_device
from ....compat.tensorflow_graphs.variable_writes import note_writes
from ....compat.tensorflow_private.strategies import LoneReplica, draw_as_one_device, pretend_replicas
from ....compat.wrong_use import WrongUse
from ....distribute.replicas import (
    all_reduce_sum_packed,
    local_copy,
    local_replica_index,
    of_first_replica,
    shares_variables,
)
from ....distribute.sharding.sharded_value import ShardedValue, TensorInPlace, see_through
from ....distribute.step_context import StepContext, WeightTotals, step_scope, this_step
from ....distribute.workers.agreement import first_local_replica
from ....optimizers.stages.user_code import apply_of
from ...inputs.batch import slice_samples
from ..labels import SAMPLES, SHARES
from .batch_tensors import tensors_of, with_tensors
from .results import numbers_in, with_numbers
from .step import OptimizerCall, Step, assign, hand_over


class WholeStep:
    """One step on the whole batch; `parts_of_sums` are variables of TensorFlow whose copies are added when they are read.

    `note_run` is called after user code has run without an error.

    The other replicas wait, and take part in exchanges: they add zeros to the gradients and receive the values of
    variables. User code runs once in each process. Context: replica; the threads take turns, the first one runs until
    it needs the others. One object serves one step (in a graph: one trace) and is called on every replica of this process.
    """

    def __init__(self, step: Step, note_run: Callable[[], None], parts_of_sums: Sequence[Any] = ()) -> None:
        self._step, self._note_run, self._parts_of_sums = step, note_run, parts_of_sums
        self._calls: list[tuple[OptimizerCall, list[Any]]] = []  # with the variables written before each
        self._written: list[Any] = []  # after the last call
        self._writes: list[tuple[Any, tf.Tensor]] = []
        self._result: Any = {}
        self._ended = False

    def __call__(self, data: Any) -> Any:
        """Run the step; return its results, with the labels of `Step.exits`.

        Context: inside a step that collects writes.
        """
        step = this_step()
        state = _State(self._step)
        copies = [] if shares_variables() else [local_copy(variable) for variable in self._parts_of_sums]
        for copy, total in zip(copies, all_reduce_sum_packed([tf.identity(copy) for copy in copies])):
            copy.assign(total)
        if local_replica_index() == 0:
            with note_writes() as written:
                self._compute(data, step, state, written)
                self._written = written()
            self._writes, self._ended = step.writes.items(), True
        else:
            number = 0  # of an exchange of the first replica of this process, in which this one takes part
            while number < len(self._calls) or not self._ended:
                self._apply(*self._calls[number], step, state)
                number += 1
        hand_over(self._written)
        for copy in copies if step.replica_id != 0 else []:  # the first replica holds all of the sum
            copy.assign(tf.zeros_like(copy))
        self._share_writes(step)
        if self._step.exits == SAMPLES:
            return self._result if step.replica_id == 0 else tf.nest.map_structure(_no_samples, self._result)
        leaves = numbers_in(self._result)
        parts = tensors_of(leaves)
        numbers = iter(of_first_replica([part for part in parts if part.dtype != tf.string]))
        with tf.device("CPU:0"):  # text stays in its process
            parts = [tf.identity(part) if part.dtype == tf.string else next(numbers) for part in parts]
        leaves = with_tensors(leaves, parts)
        if self._step.exits == SHARES and step.replica_id != 0:
            leaves = [leaf[:0] if leaf.shape.rank else tf.zeros_like(leaf) for leaf in leaves]
        return with_numbers(self._result, leaves)

    def check_samples(self, batch: Any) -> list[Any]:
        """Return no checks: the first replica has the whole batch."""
        return []

    @property
    def sums(self) -> list[bool]:
        """Return, for each result, whether it is a partial sum; in a step of `fit` none is."""
        return [False] * len(numbers_in(self._result))

    def _compute(self, data: Any, step: StepContext, state: _State, written: Callable[[], list[Any]]) -> None:
        """Run the user's code like on a single device."""
        strategy, context = tf.distribute.get_strategy(), tf.distribute.get_replica_context()
        samples = step.global_samples
        totals = WeightTotals() if self._step.notes_weights else None
        own = StepContext(0, 1, samples, samples, totals=totals, writes=step.writes, attention=step.attention)
        own.builds_under = strategy

        def take(optimizer: Any, pairs: Any) -> None:
            # No replica can wait for others in a branch or a loop.
            if tf.compat.v1.get_default_graph() is not graph:
                self._apply_inside(own, optimizer, list(pairs))
                return
            self._calls.append((OptimizerCall.of(optimizer, pairs), written()))
            with context, pretend_replicas(None), see_through(None), step_scope(step):
                self._apply(*self._calls[-1], step, state)
            written()  # each replica has updated its own copies

        own.take_gradients, graph = take, tf.compat.v1.get_default_graph()
        step.writes.state_mapping.update(state.totals)
        alone: Any = LoneReplica(strategy, first_local_replica(strategy))
        if shares_variables():  # replicas may not write such a variable without an `aggregation`
            alone = as_on_one_device()
        with alone, draw_as_one_device(), pretend_replicas(1), see_through(state.whole), step_scope(own):
            self._result = self._step.fn(data)
        self._note_run()

    def _apply(self, call: OptimizerCall, written: list[Any], step: StepContext, state: _State) -> None:
        """Call the optimizer: the gradients of the first replica, and zeros of the others."""
        hand_over(written)  # the optimizer may read them
        first = step.replica_id == 0
        weight = None if call.weight is None else of_first_replica([call.weight])[0]
        gradients = [g if first or g is None else _make_zero(g) for g, _ in call.pairs]
        call.apply(gradients, [value for _, value in call.written], weight)
        state.read()

    def _apply_inside(self, own: StepContext, optimizer: Any, pairs: list[tuple[Any, Any]]) -> None:
        """Call the optimizer on the first replica alone."""
        variables = [v for _, v in pairs]
        if any(isinstance(raw_value(v), ShardedValue) for v in [*variables, *optimizer.variables]):
            raise WrongUse(
                "An optimizer is called in a branch or a loop of a step, where replicas cannot update the shards of "
                "`unisono.distribute.sharded` together: call it outside, with zero gradients where nothing is to be applied."
            )
        take, own.take_gradients = own.take_gradients, None
        try:
            apply_of(optimizer)([g for g, _ in pairs], variables)
        finally:
            own.take_gradients = take

    def _share_writes(self, step: StepContext) -> None:
        """Write on every replica what the first one has written. It alone holds all of a sum of copies."""
        shared = [n for n, (v, _) in enumerate(self._writes) if not sums_on_read(raw_value(v))]
        values = [value if step.replica_id == 0 else tf.zeros_like(value) for _, value in self._writes]
        assign([variable for variable, _ in self._writes], values, shared)


class _State:
    """State that user code reads and no replica has completely: the totals of metrics, and sharded weights.

    Attributes:
        totals: by the id of a metric's variable.
    """

    def __init__(self, step: Step) -> None:
        summed = [v for v in step.variables if sums_on_read(raw_value(v))]
        copies = [tf.identity(local_copy(raw_value(v))) for v in summed]
        copies = copies if shares_variables() else all_reduce_sum_packed(copies)
        self.totals = {id(variable): total for variable, total in zip(summed, copies)}
        self._sharded = [v for v in map(raw_value, step.variables) if isinstance(v, ShardedValue)]
        self._whole: dict[int, TensorInPlace] = {}
        self.read()

    def read(self) -> None:
        """Gather the weights, which an optimizer may have updated."""
        for value in self._sharded:
            whole = ShardedValue.read_value(value)  # kept, because its backward pass would gather it again
            self._whole[id(value)] = TensorInPlace(value.key, whole, value)

    def whole(self, value: ShardedValue) -> Any:
        """Return the stand-in for a sharded weight."""
        if id(value) not in self._whole:
            raise WrongUse(
                f"A step that runs on one replica uses {value.name}, optimizer state that is sharded over all replicas: "
                "create the optimizer without `unisono.distribute.sharded`, or make the step partitionable."
            )
        return self._whole[id(value)]


def _no_samples(output: Any) -> Any:
    return output if isinstance(output, tf.Tensor) and output.shape.rank == 0 else slice_samples(output, 0, 0)


def _make_zero(gradient: Any) -> Any:
    """Return a zero gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values[:0], gradient.indices[:0], gradient.dense_shape)
    return tf.zeros_like(gradient)
