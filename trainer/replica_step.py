"""`replica_step`: what makes a training loop of the user's own exact. It wraps the function that `strategy.run` is given.

    rows of each replica -> the function, as a step -> writes, joined

A replica's code computes its shares of the numbers of the global batch, which add up: the convention of `strategy.run`.
`docs/design/0015-custom-loops.md` gives the reasons.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import keras
import tensorflow as tf

from ..compat.graphs import control_status_ctx, converted, left_as_written
from ..compat.parameter_servers import num_workers_of
from ..compat.random_state import thread_state
from ..distribute.arguments import shown
from ..distribute.parameter_servers.updates import on_parameter_servers
from ..distribute.replicas import all_reduce_sum, replica_id, runs_in_threads
from ..distribute.step_context import (
    ReplicaRows,
    StepContext,
    WeightTotals,
    current_step,
    draws_of,
    step_scope,
)
from ..distribute.workers.agreement import spans_workers
from .inputs.rows import row_count
from .parameter_servers.step_results import ReadOnce, write_state
from .step.collected_writes import SETTLED, CollectedWrites, make_writes
from .step.every_metric import every_metric_exact

Function = TypeVar("Function", bound=Callable[..., Any])


def replica_step(fn: Function) -> Function:
    """Makes a step of your own training loop exact: wraps the function that you give to `strategy.run`.

        @unisono.replica_step
        def train_step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            optimizer.minimize(loss, model.trainable_variables, tape=tape)
            return loss

        loss = strategy.reduce("SUM", strategy.run(train_step, args=batch), axis=None)

    What a replica computes is its share of the number of the global batch, so that the sum over the replicas is that number.
    Inside of the function, on any number of replicas with any numbers of rows:

    - A loss of Keras is this replica's share of the loss of the global batch, whatever its weights, masks and reduction, and
      also where a loss of your own looks across rows. So is `unisono.distribute.global_mean`, and `model.losses` divided by
      the number of replicas.
    - A metric counts the rows of all replicas once. `Mean` and `Sum` take a single number for a share.
    - Dropout and noise differ from replica to replica, and depend on the seed alone.
    - `BatchNormalization` and other layers with a state keep one state, that of the global batch.
    - Layers may be called for the first time.
    - With a loss scale, a skipped step leaves no trace at all.
    - On parameter servers every scheduled step counts once in metrics and states, and no two draw the same random numbers.

    Args:
        fn: takes this replica's rows: tensors `[rows, ...]` or nests of them, which have the same rows, and anything else.
            Where it takes none, all replicas count alike.

    Returns:
        The function to give to `strategy.run`. With one replica, or without a strategy, it does the same.

    Raises:
        TypeError: `fn` is not a function, or one that `tf.function` has made.
    """
    if isinstance(fn, tf.types.experimental.PolymorphicFunction):
        raise TypeError(
            f"`replica_step` takes a Python function. Received: {fn!r}. Put `tf.function` around the function that calls "
            "`strategy.run`."
        )
    if not callable(fn):
        raise TypeError(f"`fn`: `replica_step` takes a function. Received: {shown(fn)}")

    @functools.wraps(fn)
    def on_replica(*args: Any, **kwargs: Any) -> Any:
        return _run(fn, args, kwargs)

    return cast(Function, left_as_written(on_replica))


def _run(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if tf.distribute.get_replica_context() is None:
        raise RuntimeError(
            "A function that `replica_step` has wrapped was called outside of `strategy.run`: give it to `strategy.run`."
        )
    if current_step() is not None:
        raise RuntimeError(
            "A function that `replica_step` has wrapped was called in a step of `fit`, which is exact by itself, "
            "or in another such function: wrap the outermost one alone."
        )
    own = _at_start(_rows_in((args, kwargs)))
    step = StepContext(**vars(own.rows), totals=WeightTotals(), shares=True)
    writes = ReadOnce() if on_parameter_servers() else CollectedWrites()
    with step_scope(step), every_metric_exact():
        with writes:
            step.writes = writes
            result = converted(fn, own.autograph)(*args, **kwargs)
        if isinstance(writes, ReadOnce):
            applied = tf.constant(True) if step.applied is None else step.applied
            alone = num_workers_of(tf.distribute.get_strategy()) == 1
            write_state(writes.items(), writes.before, applied, alone, writes.sums)
        else:
            make_writes(writes.items(), step, step.notes.get(SETTLED, set()))
    return result


def draws_of_replica() -> contextlib.AbstractContextManager[None]:
    """Inside, random layers draw this replica's numbers. Context: replica, outside of a step."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas == 1 and not on_parameter_servers():
        return contextlib.nullcontext()
    me = replica_id() if replicas > 1 else 0
    known = tf.get_static_value(me)
    return draws_of(StepContext(me if known is None else int(known), replicas, 1, replicas, shares=True))


class _Start(NamedTuple):
    """What a replica knows when its step begins."""

    rows: ReplicaRows
    autograph: Any


def _rows_in(arguments: Any) -> Any:
    """This replica's rows: an int where they are known while tracing."""
    leaves = [leaf for leaf in tf.nest.flatten(arguments) if _has_rows(leaf)]
    return row_count(leaves) if leaves else 1


def _has_rows(leaf: Any) -> bool:
    """Whether an argument is a tensor `[rows, ...]`."""
    if isinstance(leaf, tf.Variable | keras.Variable):
        return False
    return (tf.is_tensor(leaf) or hasattr(leaf, "__array__")) and leaf.shape.rank != 0


def _at_start(rows: Any) -> _Start:
    """The rows of this replica among those of all. Replicas in threads of their own take over the caller's state."""
    strategy = tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    if not runs_in_threads(strategy):
        return _Start(ReplicaRows(0, 1, rows, rows), control_status_ctx())

    def of_all(strategy: tf.distribute.Strategy, rows: Any) -> tuple[Any, ...]:
        return strategy.experimental_local_results(rows), thread_state(), control_status_ctx()

    context = tf.distribute.get_replica_context()
    each, state, autograph = context.merge_call(left_as_written(of_all), args=(rows,))
    state.enter()
    if replicas == 1:
        return _Start(ReplicaRows(0, 1, rows, rows), autograph)
    me = replica_id()
    if spans_workers(strategy):
        (counts,) = all_reduce_sum([tf.one_hot(me, replicas, dtype=tf.int32) * tf.cast(rows, tf.int32)])
        return _Start(
            ReplicaRows(me, replicas, rows, tf.reduce_sum(counts), tf.reduce_sum(counts[:me])), autograph
        )
    counts = each if len(each) == replicas else each * replicas
    me = int(tf.get_static_value(me))
    return _Start(ReplicaRows(me, replicas, rows, sum(counts), sum(counts[:me])), autograph)
