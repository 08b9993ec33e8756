"""Metrics whose value over several replicas is that of one device.

A metric's variables are sums over the replicas: each writes its own copy, and they are added when they are read. How an
update is made is told by what the metric is and what it is fed (`own_rows_suffice`):

- a stock metric fed with rows adds up sums and counts: every replica counts its own rows;
- `Mean` or `Sum` fed with one number for the whole batch (a loss) counts it with this replica's share of the rows, so that
  all replicas together count it once;
- any other update may be any function of the batch: it is made with the rows of all replicas, as on one device, and the
  first replica keeps what it writes.

So an update leaves in each replica's copy what belongs there; it is noted as settled (see `make_writes`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import layers_of
from ...compat.shared_change import shared_attribute
from ...compat.training import CompileMetrics, Mean, MetricsList, Sum, held_metrics
from ...compat.variables import raw_value, stateless_scope
from ...distribute.gathering import gather_for_step
from ...distribute.replicas import (
    all_reduce_sum,
    all_reduce_sum_packed,
    check_not_in_xla,
    local_copy,
    shares_variables,
)
from ...distribute.step_context import StepContext, current_step, step_scope, this_step
from .collected_writes import SETTLED
from .metric_kinds import is_stock, own_rows_suffice


def leaf_metrics(metrics: list[Any]) -> list[Any]:
    """The metrics that hold state themselves, each once: without Keras' containers, with the metrics inside of others."""
    leaves: list[Any] = []
    for metric in metrics:
        container = isinstance(metric, CompileMetrics | MetricsList)
        inside = metric.metrics if container else held_metrics(metric)
        for leaf in [*([] if container else [metric]), *leaf_metrics(inside)]:
            if not any(leaf is other for other in leaves):
                leaves.append(leaf)
    return leaves


def metrics_of(model: TrainedModel) -> list[Any]:
    """All metrics that the model can reach: its own, those of `compile`, those of layers, those inside of others."""
    held = [metric for layer in layers_of(model) for metric in held_metrics(layer)]
    return leaf_metrics([*model.metrics, *held])


@contextlib.contextmanager
def exact_updates(metrics: list[Any], loss_metrics: list[Any]) -> Iterator[None]:
    """While a step is traced, `update_state` of each metric does what the module says.

    Args:
        metrics: the model's metrics.
        loss_metrics: those among them that Keras feeds with the loss of one output; they count rows.

    Context: cross-replica, around `strategy.run`; the updates happen in replica context.
    """
    with contextlib.ExitStack() as stack:
        for metric in leaf_metrics(metrics):
            by_rows = any(metric is other for other in loss_metrics)
            update = functools.partial(_exact_update, metric, by_rows=by_rows)
            stack.enter_context(shared_attribute(metric, "update_state", update))
        yield


def _exact_update(metric: Any, original: Callable[..., Any], by_rows: bool) -> Callable[..., Any]:
    def update_state(*args: Any, **kwargs: Any) -> Any:
        step = current_step()
        if step is not None and by_rows:
            # Where all rows are gathered, each replica counts the loss of all of them with the rows that are its own.
            step = step.notes.get("gathered_in", step)
            args, kwargs = args[:1], {"sample_weight": step.rows}
        if step is None or step.num_replicas == 1:
            return original(*args, **kwargs)
        if by_rows:
            with _settled(metric, step, step.alive):
                return original(*args, **kwargs)
        return exact_update(metric, original, *args, **kwargs)

    return update_state


def exact_update(metric: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`original(*args, **kwargs)`, the update of a metric, as the module says. Context: a step on several replicas."""
    step = this_step()
    if own_rows_suffice(metric, args, kwargs):
        with _settled(metric, step, step.alive):
            return original(*args, **kwargs)
    if type(metric) in (Mean, Sum) and _is_one_number(*args, **kwargs):
        if step.shares:
            with _settled(metric, step, True):
                return _update_mean_of_shares(original, step, *args, **kwargs)
        with _settled(metric, step, step.alive):
            return _update_mean(original, step, *args, **kwargs)
    return _update_on_all_rows(metric, original, step, args, kwargs)


def _update_on_all_rows(metric: Any, original: Any, step: StepContext, args: Any, kwargs: Any) -> Any:
    """The update of one device, of which the first replica keeps the writes."""
    check_not_in_xla(
        f"the metric {metric.name!r}, which may look at the whole batch (see `unisono.rowwise`),"
    )
    args, kwargs = _rows_of_all((args, kwargs), step)
    if step.shares and not is_stock(metric):
        _begin_with_the_whole_state(metric, step)
    with _settled(metric, step, step.replica_id == 0), step_scope(step.on_all_rows()):
        return original(*args, **kwargs)


def _begin_with_the_whole_state(metric: Any, step: StepContext) -> None:
    """Puts the whole state on the first replica and zeros on the others, as `give_first_replica_the_state` in `fit`.

    Nobody sees the reset of a metric that belongs to no model. Where all replicas share one copy they keep it.
    """
    for variable, whole in zip(metric.variables, _state_over_replicas(metric, step)):
        before = tf.identity(local_copy(raw_value(variable)))
        others = before if shares_variables() else tf.zeros_like(whole)
        step.writes.add_update((variable, tf.where(tf.equal(step.replica_id, 0), whole, others)))
        step.notes.setdefault(SETTLED, set()).add(id(variable))


def _rows_of_all(structure: Any, step: StepContext) -> Any:
    """The rows of all replicas of each tensor; those of one tensor are gathered once in a step."""
    known = step.notes.setdefault("rows of all", {})

    def gather(value: Any) -> Any:
        if not tf.is_tensor(value):  # an option, say
            return value
        number = isinstance(value, tf.Tensor) and value.shape.rank == 0
        key = id(value), id(tf.compat.v1.get_default_graph())  # a branch has a graph of its own
        if key not in known:
            known[key] = value, _joined_number(value, step) if number else gather_for_step(value)
        return known[key][1]

    return keras.tree.map_structure(gather, structure)


def _joined_number(value: tf.Tensor, step: StepContext) -> tf.Tensor:
    """The number of the whole batch: a mean over samples; in a custom loop the sum of the replicas' shares."""
    if not (value.dtype.is_floating or value.dtype.is_integer):
        return value
    if step.shares:
        return value if _is_constant(value) else all_reduce_sum([value])[0]
    dtype = value.dtype if value.dtype.is_floating else tf.float64
    (total,) = all_reduce_sum([tf.math.multiply_no_nan(tf.cast(value, dtype), step.share(dtype))])
    return total if value.dtype.is_floating else tf.cast(tf.round(total), value.dtype)


@contextlib.contextmanager
def _settled(metric: Any, step: StepContext, counts: Any) -> Iterator[None]:
    """Takes back what is written inside to the metric's variables where `counts`, a bool or a bool tensor, is false."""
    scope = stateless_scope()
    assert scope is not None
    before = {id(variable): scope.state_mapping.get(id(variable)) for variable in metric.variables}
    yield
    for variable in metric.variables:
        new, old = scope.state_mapping.get(id(variable)), before.get(id(variable))
        if new is None or new is old:
            continue
        if counts is not True:
            old = tf.identity(local_copy(raw_value(variable))) if old is None else old
            scope.add_update((variable, tf.where(counts, new, tf.cast(old, new.dtype))))
        step.notes.setdefault(SETTLED, set()).add(id(variable))


@contextlib.contextmanager
def numbers_of_part(metrics: list[Any], part: StepContext) -> Iterator[None]:
    """While a worker computes a part of a batch: one number that `Mean` or `Sum` is fed with counts for its rows.

    Args:
        metrics: the model's metrics.
        part: the rows of the part, and of the batch.
    """
    means = [metric for metric in leaf_metrics(metrics) if type(metric) in (Mean, Sum)]
    for metric in means:
        object.__setattr__(metric, "update_state", _update_of_part(metric.update_state, part))
    try:
        yield
    finally:
        for metric in means:
            object.__delattr__(metric, "update_state")


def _update_of_part(original: Callable[..., Any], part: StepContext) -> Callable[..., Any]:
    def update_state(values: Any, sample_weight: Any = None) -> Any:
        if not _is_one_number(values, sample_weight):
            return original(values, sample_weight=sample_weight)
        return _update_mean(original, part, values, sample_weight)

    return update_state


def exact_result(metric: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`original(*args, **kwargs)`, the result of a metric, over all replicas. Context: a step on several replicas."""
    step = this_step()
    state = list(zip(metric.variables, _state_over_replicas(metric, step)))
    with keras.StatelessScope(state_mapping=state), step_scope(step.on_all_rows()):
        return as_tensors(original(*args, **kwargs))


def as_tensors(structure: Any) -> Any:
    """The nest with the values of variables in their place, as they are in the current scope."""
    return keras.tree.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf) if isinstance(leaf, keras.Variable) else leaf, structure
    )


def _state_over_replicas(metric: Any, step: StepContext) -> list[tf.Tensor]:
    """The state of a metric as it will be read after this step, from what each replica has noted so far."""
    old = [tf.identity(local_copy(raw_value(v))) for v in metric.variables]
    noted = [step.writes.state_mapping.get(id(v)) for v in metric.variables]
    new = [before if value is None else tf.cast(value, before.dtype) for value, before in zip(noted, old)]
    if not shares_variables():
        return all_reduce_sum_packed(new)
    added = all_reduce_sum_packed([value - before for value, before in zip(new, old)])
    return [before + more for before, more in zip(old, added)]


def _is_one_number(values: Any, sample_weight: Any = None) -> bool:
    """Whether `Mean` or `Sum` is fed with one number, and one weight for it."""
    return all(part is None or tf.convert_to_tensor(part).shape.rank == 0 for part in (values, sample_weight))


def _update_mean(original: Any, step: StepContext, values: Any, sample_weight: Any = None) -> Any:
    values = tf.convert_to_tensor(values)
    values = values if values.dtype.is_floating else tf.cast(values, tf.float32)
    if sample_weight is None:
        return original(values, sample_weight=step.share(values.dtype))
    return original(values, sample_weight=_part_of_weight(sample_weight, step))


def _update_mean_of_shares(original: Any, step: StepContext, values: Any, sample_weight: Any = None) -> Any:
    """One number, of which this replica has its share, counts once; a weight that was computed is the replica's own."""
    values = tf.convert_to_tensor(values)
    values = values if values.dtype.is_floating else tf.cast(values, tf.float32)
    if sample_weight is not None and not _is_written(sample_weight, step):
        return original(values, sample_weight=sample_weight)
    weight = tf.cast(1.0 if sample_weight is None else sample_weight, values.dtype)
    return original(values * step.num_replicas, sample_weight=weight / step.num_replicas)


def _part_of_weight(weight: Any, step: StepContext) -> Any:
    """This replica's part of the weight of one number.

    What the program computes from its rows (their number, a count of words) is a part already. A number that is written in
    the program, or is the same on every replica, is the weight of the whole batch.
    """
    return tf.cast(weight, tf.float32) * step.share() if _is_written(weight, step) else weight


def _is_written(weight: Any, step: StepContext) -> bool:
    if isinstance(weight, int) and not isinstance(weight, bool):
        return not (isinstance(step.rows, int) and weight == step.rows)  # x.shape[0]
    return isinstance(weight, float | keras.Variable) or (tf.is_tensor(weight) and _is_constant(weight))


def _is_constant(tensor: Any) -> bool:
    return not tf.executing_eagerly() and tensor.op.type == "Const"


def variable_ids(metrics: list[Any]) -> set[int]:
    """Ids of the metrics' variables, of which every replica writes its own copy."""
    return {id(variable) for metric in leaf_metrics(metrics) for variable in metric.variables}


def give_first_replica_the_state(metrics: list[Any], strategy: tf.distribute.Strategy) -> None:
    """After a reset: a metric that may see all rows starts from its initial state on the first replica, from 0 elsewhere.

    Keras' variables are sums over replicas, and a reset gives each replica its part of the initial value, which is 0 where
    the metric is Keras' own.
    """
    if strategy.num_replicas_in_sync == 1:
        return
    for metric in leaf_metrics(metrics):
        if is_stock(metric):
            continue
        for variable in metric.variables:
            copies = strategy.experimental_local_results(variable.value)
            if len(copies) < 2:
                continue
            total = tf.add_n([tf.identity(copy) for copy in copies])
            for index, copy in enumerate(copies):
                copy.assign(total if index == 0 else tf.zeros_like(total))
