"""The collectives of a partitioned step: what replicas ask of each other, answered by their strategy."""

import itertools
from typing import Any

import tensorflow as tf

from ....distribute.gathering import gather_outputs
from ....distribute.mesh import MATRICES, combine_in_groups, mesh_of
from ....distribute.replicas import all_reduce_sum_packed, num_replicas
from ....distribute.sharding.collectives import all_gather, reduce_scatter
from ....distribute.step_context import this_step
from ..exchange import Exchange, Request


def run_with_collectives(run: Exchange) -> list[tf.Tensor]:
    """Run a replica's step; the collectives of its strategy answer its requests."""
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
        asked = [(r.tensor, r.mesh, MATRICES if r.parts and r.axis is None else r.axis) for r in requests]
        return combine_in_groups(*map(list, zip(*asked))) if asked else []  # type: ignore[arg-type]
    summed = [request.tensor for request in requests if request.axis is None and not request.parts]
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
            found += gather or [next(totals) if axis is None else _concatenate(tensor, axis)]
    return found


def _concatenate(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    order = [axis, *(n for n in range(tensor.shape.rank) if n != axis)]
    moved = tensor if axis == 0 else tf.transpose(tensor, order)
    whole = gather_outputs(moved, this_step())
    return whole if axis == 0 else tf.transpose(whole, [order.index(n) for n in range(len(order))])
