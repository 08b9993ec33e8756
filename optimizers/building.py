"""Creating an optimizer's variables wherever it is used first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..compat.variables import make_again, stateless_scope

_lock = threading.RLock()


def ensure_built(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds `optimizer` for `variables` unless it is built.

    It can be called where variables cannot be created: while a `tf.function`, a branch or a loop body is traced, inside
    `strategy.run`, inside a `keras.StatelessScope`. All of these belong to a thread, so the variables are then created
    in another one, which is in eager mode and in the cross-replica context of the same strategy.

    Args:
        optimizer: a `unisono.optimizers.Optimizer`; its `build` is called at most once.
        variables: the trainable variables, in the order of the slots.

    Context: any.
    """
    if optimizer.built:
        return
    strategy = tf.distribute.get_strategy()

    def create() -> None:
        with _lock:  # two threads may trace the first use at the same time
            if optimizer.built:
                return
            with strategy.scope(), keras.name_scope(optimizer.name, caller=optimizer):
                for each in (optimizer, *inner_optimizers(optimizer)):
                    move_to_strategy(each, strategy)
                optimizer.build(list(variables))
                optimizer.built = True

    outside_replicas = tf.distribute.in_cross_replica_context() or not tf.distribute.has_strategy()
    if tf.executing_eagerly() and outside_replicas and stateless_scope() is None:
        create()
    else:
        run_in_thread(create)


def inner_optimizers(optimizer: Any) -> list[Any]:
    """Those that `optimizer` wraps, and that it builds."""
    inner = getattr(optimizer, "inner_optimizer", None)
    wrapped = list(getattr(optimizer, "_inner_optimizers", ())) + ([] if inner is None else [inner])
    return wrapped + [deeper for each in wrapped for deeper in inner_optimizers(each)]


def move_to_strategy(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Gives an optimizer that was created outside of `strategy.scope()` counters that belong to the strategy.

    Context: cross-replica; the optimizer is not built yet.
    """
    if optimizer.built:
        return
    optimizer._distribution_strategy = strategy
    if not tf.distribute.has_strategy():
        return
    for variable in (optimizer._iterations, optimizer._learning_rate):
        if isinstance(variable, keras.Variable) and not strategy.extended.variable_created_in_scope(
            variable.value
        ):
            make_again(variable)


def run_in_thread(fn: Callable[[], Any]) -> Any:
    """`fn()` in a thread of its own, waited for; what it raises is raised here."""
    result: dict[str, Any] = {}

    def target() -> None:
        try:
            result["value"] = fn()
        except BaseException as error:
            result["error"] = error

    thread = threading.Thread(target=target, name="unisono-optimizer-build", daemon=True)
    thread.start()
    thread.join()
    if "error" in result:
        raise result["error"]
    return result["value"]
