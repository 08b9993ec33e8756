"""The collectives of a partitioned step: what replicas ask of each other, answered by their strategy."""

import itertools
from typing import Any

import tensorflow as tf

from ....distribute.gathering import gather_outputs
from ....distribute.mesh import MATRICES, combine_in_groups, mesh_of
from ....distribute.replicas import all_reduce_sum_packed
from ....distribute.sharding.collectives import all_gather, pack_tensors, reduce_scatter
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
    if mesh_of().divides_weights:
        return _combine_in_packs(requests)
    summed = [request.tensor for request in requests if request.axis is None and not request.parts]
    totals = iter(all_reduce_sum_packed(summed))
    found: list[tf.Tensor] = []
    for scatter, group in itertools.groupby(requests, lambda request: request.parts and request.axis is None):
        together = list(group)
        if scatter:
            found += reduce_scatter([request.tensor for request in together])
            continue
        for tensor, axis, _, parts in together:  # each gather waits for what it is to wait for alone
            gather = all_gather([tensor]) if parts else None
            found += gather or [next(totals) if axis is None else _concatenate(tensor, axis)]
    return found


def _combine_in_packs(requests: list[Request]) -> list[tf.Tensor]:
    """Answer requests along the axes of a mesh; sums of tensors of one dtype along one axis share packs."""
    alike: dict[Any, list[int]] = {}
    for number, (tensor, axis, mesh, parts) in enumerate(requests):
        one = number if axis is not None or not tensor.shape.is_fully_defined() else None
        alike.setdefault((mesh, parts, tensor.dtype, one), []).append(number)
    packs = [[group[n] for n in pack] for group in alike.values()
             for pack in pack_tensors([requests[n].tensor for n in group])]  # fmt: skip
    asked = []
    for pack in packs:
        first = requests[pack[0]]
        sent = first.tensor
        if len(pack) > 1:
            rows = sent.shape[0] if first.parts else 1
            sent = tf.concat([tf.reshape(requests[n].tensor, [rows, -1]) for n in pack], 1)
        asked.append((sent, first.mesh, MATRICES if first.parts and first.axis is None else first.axis))
    answers = combine_in_groups(*map(list, zip(*asked))) if asked else []  # type: ignore[arg-type]
    found: dict[int, tf.Tensor] = {}
    for pack, answer in zip(packs, answers):
        if len(pack) == 1:
            found[pack[0]] = answer
            continue
        shapes = [requests[n].tensor.shape[requests[n].parts :] for n in pack]
        pieces = tf.split(tf.reshape(answer, [-1]), [shape.num_elements() for shape in shapes])
        found.update(zip(pack, map(tf.reshape, pieces, shapes)))
    return [found[number] for number in range(len(requests))]


def _concatenate(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    if axis == 0:
        return gather_outputs(tensor, this_step())
    axes = tf.range(tf.rank(tensor))
    order = tf.concat([[axis], axes[:axis], axes[axis + 1 :]], 0)
    return tf.transpose(
        gather_outputs(tf.transpose(tensor, order), this_step()), tf.math.invert_permutation(order)
    )
