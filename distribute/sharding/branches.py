"""Branches of a step that may contain collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.guarded_writes import writes_only_where_here
from ..step_context import current_step, step_scope


def if_all(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> None:
    """Runs `then` on every replica where `condition` is true, else `otherwise`; both write, and may contain collectives.

    TensorFlow rejects a collective in a conditional of one replica. So the conditional is created once, in cross-replica
    context, and the replicas run again in its branches, like the steps of a loop. The condition, a bool scalar, is the
    same on every replica; each has its own functions, which may hold its tensors.

    Context: replica.
    """
    step, guarded = current_step(), writes_only_where_here()

    def run(branch: Callable[[], Any] | None) -> None:
        if branch is not None:
            with step_scope(step), guarded():  # it may run in another thread
                branch()

    def across(strategy: tf.distribute.Strategy, conditions: Any, branches: Any) -> None:
        first = strategy.experimental_local_results(conditions)[0]

        def branch(index: int) -> Callable[[], tf.Tensor]:
            def on_replicas() -> tf.Tensor:
                strategy.run(lambda of_replica: run(of_replica(index)), args=(branches,))
                return tf.constant(True)

            return on_replicas

        tf.cond(first, branch(0), branch(1))

    with tf.device("CPU:0"):  # the host must know it, and may know it already
        known = tf.identity(condition)
    tf.distribute.get_replica_context().merge_call(
        across, args=(known, lambda index: (then, otherwise)[index])
    )
