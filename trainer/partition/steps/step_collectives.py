"""The collectives of a partitioned step: what replicas ask of each other, answered by their strategy."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from ....distribute.gathering import gather_outputs
from ....distribute.mesh import combine_in_groups, mesh_of
from ....distribute.replicas import all_reduce_sum_packed
from ....distribute.step_context import this_step
from ..conversions import Exchange, Request


def run_with_collectives(run: Exchange) -> list[tf.Tensor]:
    """Runs a replica's step; the collectives of its strategy answer its requests."""
    answers: Any = None
    while True:
        try:
            requests = run.send(answers)
        except StopIteration as end:
            return end.value
        answers = _answers(requests)


def _answers(requests: list[Request]) -> list[tf.Tensor]:
    if mesh_of().divides_weights:
        combine = [
            tf.add_n if r.axis is None else functools.partial(tf.concat, axis=r.axis) for r in requests
        ]
        return combine_in_groups([r.tensor for r in requests], [r.mesh for r in requests], combine)
    totals = iter(all_reduce_sum_packed([request.tensor for request in requests if request.axis is None]))
    return [next(totals) if axis is None else _concatenated(tensor, axis) for tensor, axis, _ in requests]


def _concatenated(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    order = [axis, *(n for n in range(tensor.shape.rank) if n != axis)]
    moved = tensor if axis == 0 else tf.transpose(tensor, order)
    whole = gather_outputs(moved, this_step())
    return whole if axis == 0 else tf.transpose(whole, [order.index(n) for n in range(len(order))])
