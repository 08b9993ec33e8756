"""Metrics whose value over several replicas is that of one device.

Each kind of update is told apart while tracing:

- a stock metric fed with rows adds up sums and counts: every replica counts its own rows, and the sums are read together;
- `Mean` or `Sum` fed with one number for the whole batch (a loss) counts it with this replica's share of the rows, so that
  all replicas together count it once;
- any other metric may be any function of the batch: it sees the rows of all replicas, and the first one keeps the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...compat.training import CompileMetrics, Mean, MeanMetricWrapper, MetricsList, Sum, function_of
from ...compat.variables import raw_value
from ...distribute.gathered_rows import own_rows_of_all
from ...distribute.join_rules import numbered
from ...distribute.replicas import all_reduce_sum_packed, local_copy, shares_variables
from ...distribute.step_context import current_step
from .added_losses import in_units_of_a_mean
from .global_loss import _ROWWISE_FUNCTIONS


def leaf_metrics(metrics: list[Any]) -> list[Any]:
    """The metrics that hold state themselves, without Keras' containers."""
    leaves: list[Any] = []
    for metric in metrics:
        if isinstance(metric, CompileMetrics | MetricsList):
            leaves.extend(leaf_metrics(metric.metrics))
        elif not any(metric is other for other in leaves):
            leaves.append(metric)
    return leaves


def counts_own_rows(metric: keras.metrics.Metric) -> bool:
    """Whether sums over replicas of the metric's state are its state over all rows."""
    if getattr(metric, "_unisono_rowwise", False):
        return True
    if not _is_stock(type(metric)):
        return False
    if type(metric) is MeanMetricWrapper:
        fn = function_of(metric)
        return getattr(fn, "_unisono_rowwise", False) or fn in _ROWWISE_FUNCTIONS or _is_stock_function(fn)
    return True


def _is_stock(cls: type) -> bool:
    return cls.__module__.startswith("keras.src.metrics.")


def _is_stock_function(fn: Any) -> bool:
    module = getattr(fn, "__module__", "") or ""
    name = getattr(fn, "__name__", "")
    return module.startswith("keras.src.") and name not in ("dice", "tversky", "circle")


@contextlib.contextmanager
def exact_updates(metrics: list[Any], loss_metrics: list[Any], with_results: bool = False) -> Iterator[None]:
    """While a step on several replicas is traced, `update_state` of each metric does what the module says.

    Args:
        metrics: the model's metrics.
        loss_metrics: those among them that Keras feeds with the loss of one output; they count rows.
        with_results: whether the step looks at `result()`, which is then made the one over all replicas there and then.

    Context: cross-replica, around `strategy.run`; the updates happen in replica context.
    """
    leaves = leaf_metrics(metrics)
    for metric in leaves:
        by_rows = any(metric is other for other in loss_metrics)
        object.__setattr__(metric, "update_state", _exact_update(metric, metric.update_state, by_rows))
        if with_results:
            object.__setattr__(metric, "result", _exact_result(metric, metric.result))
    try:
        yield
    finally:
        for metric in leaves:
            object.__delattr__(metric, "update_state")
            if with_results:
                object.__delattr__(metric, "result")


def _exact_update(metric: Any, original: Callable[..., Any], by_rows: bool) -> Callable[..., Any]:
    def update_state(*args: Any, **kwargs: Any) -> Any:
        step = current_step()
        if step is None:
            return original(*args, **kwargs)
        if by_rows:
            return original(args[0], sample_weight=step.rows)
        if type(metric) in (Mean, Sum):
            return _update_mean(original, step, *args, **kwargs)
        if counts_own_rows(metric):
            return original(*args, **kwargs)
        args, kwargs = own_rows_of_all((args, kwargs))
        return original(*args, **kwargs)

    return update_state


def _exact_result(metric: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def result(*args: Any, **kwargs: Any) -> Any:
        step = current_step()
        if step is None or step.num_replicas == 1:
            return original(*args, **kwargs)
        state = _state_over_replicas(metric, step)
        with keras.StatelessScope(state_mapping=list(zip(metric.variables, state))):
            return original(*args, **kwargs)

    return result


def _state_over_replicas(metric: Any, step: Any) -> list[tf.Tensor]:
    """The state of a metric as it will be read after this step, from what each replica has noted so far."""
    local, shared = counts_own_rows(metric), shares_variables()
    old = [tf.identity(local_copy(raw_value(v))) for v in metric.variables]
    noted = [step.writes.state_mapping.get(id(v)) for v in metric.variables]
    new = [before if value is None else tf.cast(value, before.dtype) for value, before in zip(noted, old)]
    if shared and not local:
        return new
    if not local:
        mine = tf.equal(step.replica_id, 0)
        return all_reduce_sum_packed([tf.where(mine, value, tf.zeros_like(value)) for value in new])
    new = [tf.where(step.alive, value, before) for value, before in zip(new, old)]
    if not shared:
        return all_reduce_sum_packed(new)
    added = all_reduce_sum_packed([value - before for value, before in zip(new, old)])
    return [before + more for before, more in zip(old, added)]


def _update_mean(original: Any, step: Any, values: Any, sample_weight: Any = None) -> Any:
    if sample_weight is None:
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            values = values if values.dtype.is_floating else tf.cast(values, tf.float32)
            if step.observer is not None:
                step.observer.note(("fed", step.notes.get("fed", 0)), values)
            values = in_units_of_a_mean(values, numbered(step.rules.fed, step.count("fed")), step)
            return original(values, sample_weight=step.share(values.dtype))
    return original(values, sample_weight=sample_weight)


def variable_ids(metrics: list[Any]) -> tuple[set[int], set[int]]:
    """Ids of the variables of metrics that count their own rows, and of those that see all rows."""
    local: set[int] = set()
    gathered: set[int] = set()
    for metric in leaf_metrics(metrics):
        (local if counts_own_rows(metric) else gathered).update(id(v) for v in metric.variables)
    return local, gathered


def give_first_replica_the_state(metrics: list[Any], strategy: tf.distribute.Strategy) -> None:
    """After a reset: a metric that sees all rows starts from its initial state on the first replica, from 0 elsewhere.

    Keras' variables are sums over replicas, and a reset gives each replica its part of the initial value.
    """
    if strategy.num_replicas_in_sync == 1:
        return
    for metric in leaf_metrics(metrics):
        if counts_own_rows(metric):
            continue
        for variable in metric.variables:
            copies = strategy.experimental_local_results(variable.value)
            if len(copies) < 2:
                continue
            total = tf.add_n([tf.identity(copy) for copy in copies])
            for index, copy in enumerate(copies):
                copy.assign(total if index == 0 else tf.zeros_like(total))
