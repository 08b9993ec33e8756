"""The collectives of a partitioned step: what replicas ask of each other, answered by their strategy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ....distribute.gathering import gather_outputs
from ....distribute.mesh import combine_in_groups, mesh_of
from ....distribute.replicas import all_reduce_sum_packed, num_replicas
from ....distribute.sharding.collectives import all_gather, reduce_scatter
from ....distribute.step_context import this_step
from ..exchange import Exchange, Request


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
    if num_replicas() == 1:
        return [r.tensor[0] if r.parts and r.axis is None else r.tensor for r in requests]
    if mesh_of().divides_weights:
        combine = [_combined(request) for request in requests]
        return combine_in_groups([r.tensor for r in requests], [r.mesh for r in requests], combine)
    summed = [request.tensor for request in requests if request.axis is None and not request.parts]
    if not all(tensor.shape.is_fully_defined() for tensor in summed):
        this_step().shapes_vary = True
    totals = iter(all_reduce_sum_packed(summed))
    found: list[tf.Tensor] = []
    for scatters, group in itertools.groupby(
        requests, lambda request: request.parts and request.axis is None
    ):
        together = list(group)
        if scatters:
            found += reduce_scatter([request.tensor for request in together])
            continue
        for tensor, axis, _, parts in together:  # each gather waits for what it is to wait for alone
            gather = all_gather([tensor]) if parts else None
            found += gather or [next(totals) if axis is None else _concatenated(tensor, axis)]
    return found


def _combined(request: Request) -> Callable[[list[tf.Tensor], int], tf.Tensor]:
    """What a request asks of the tensors of a group of replicas, for one of them."""
    if request.axis is not None:
        return lambda tensors, number: tf.concat(tensors, request.axis)
    if request.parts:
        return lambda tensors, number: tf.add_n([rows[number] for rows in tensors])
    return lambda tensors, number: tf.add_n(tensors)


def _concatenated(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    order = [axis, *(n for n in range(tensor.shape.rank) if n != axis)]
    moved = tensor if axis == 0 else tf.transpose(tensor, order)
    step = this_step()
    if not moved.shape.is_fully_defined() or not isinstance(step.samples, int):
        step.shapes_vary = True
    whole = gather_outputs(moved, step)
    return whole if axis == 0 else tf.transpose(whole, [order.index(n) for n in range(len(order))])
