"""Limits how far the backward pass may be ahead of the reduce-scatters of its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.edges import (
    graph_of_replica,
    let_wait,
    newly_needed,
    number_of,
)
from ...compat.tensorflow_graphs.gradients import is_of_a_gradient
from ..replicas import bytes_of_packs, local_replica_index
from .transient_weights import KEPT, held_by, holds_numbers


class Window:
    """The gradients that the replicas of one graph have sent in packs.

    A backward pass is often faster than links: every gradient would have its full size before the first sum is ready.
    So the operations that make the gradients of a pack wait for the sum of an earlier pack. The graph is changed after
    the gradient was taken. Operations that only read a shape run in the forward pass, and do not wait.

    No cycle can arise. An operation that waits for a sum is needed only for a later pack: not for any earlier sum, on any
    replica of this process. Over several workers collectives run in one order everywhere, and an operation that a collective
    needs never waits for a later one.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._first: float | None = None  # the number of the first operation of a backward pass
        self._needed: set[str] = set()  # the operations of backward passes that earlier sums depend on
        # The bytes of each pack, and its sum; by local replica.
        self._sent: dict[int, list[tuple[int, tf.Operation]]] = {}

    def before(self, tensors: Sequence[tf.Tensor]) -> None:
        """Makes these gradients, of the next pack, wait for the sum of earlier gradients, if there is one."""
        needed = self._newly_needed(tensor.op for tensor in tensors)
        sum_before = self._last_to_come()
        if sum_before is None:
            return
        waiting: set[str] = set()
        for op in sorted(needed, key=number_of):
            earlier = {*(tensor.op.name for tensor in op.inputs), *(each.name for each in op.control_inputs)}
            if not earlier.isdisjoint(waiting):
                waiting.add(op.name)
            elif is_of_a_gradient(op) and op.type not in KEPT and any(map(holds_numbers, op.outputs)):
                let_wait(op, sum_before)
                waiting.add(op.name)

    def after(self, tensors: Sequence[tf.Tensor], total: tf.Tensor) -> None:
        """Records a sent pack and a tensor that is ready with its sum, after earlier ones, as over several workers."""
        self._newly_needed([total.op])
        size = sum((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors)
        sent = self._sent.setdefault(local_replica_index(), [])
        if sent:
            let_wait(total.op, sent[-1][1])
        sent.append((size, total.op))

    def _last_to_come(self) -> tf.Operation | None:
        """The sum to wait for: after it the largest pack and the bytes of one more pack may be in flight."""
        in_flight = largest = 0
        for size, total in reversed(self._sent.get(local_replica_index(), ())):
            in_flight, largest = in_flight + size, max(largest, size)
            if in_flight - largest > bytes_of_packs():
                return total
        return None

    def _newly_needed(self, ops: Iterable[tf.Operation]) -> list[tf.Operation]:
        """The dependencies of these operations since the first gradient was taken, including them, without known ones."""
        if self._first is None:
            of_gradients = filter(is_of_a_gradient, self.graph.get_operations())
            self._first = next(map(number_of, of_gradients), None)
        return [] if self._first is None else newly_needed(ops, self._first, self._needed)


def gradient_window() -> Window | None:
    """The window of this replica's graph, for all its backward passes; None in eager mode. Context: replica."""
    graph = graph_of_replica()
    return None if graph is None else held_by(graph, "gradients that are sent", Window)
