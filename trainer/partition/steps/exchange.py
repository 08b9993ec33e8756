"""The exchanges of a partitioned step: the collectives of a strategy answer the requests of a replica."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ....distribute.gathering import gather_outputs
from ....distribute.replicas import all_reduce_sum_packed
from ....distribute.step_context import this_step
from ..conversions import Exchange, Request


def with_collectives(run: Exchange) -> list[tf.Tensor]:
    """Runs a replica's step; the collectives of its strategy answer its requests."""
    answers: Any = None
    while True:
        try:
            requests = run.send(answers)
        except StopIteration as end:
            return end.value
        answers = _answers(requests)


def _answers(requests: list[Request]) -> list[tf.Tensor]:
    answers: list[Any] = [None] * len(requests)
    summed = [n for n, request in enumerate(requests) if request.axis is None]
    if not all(requests[n].tensor.shape.is_fully_defined() for n in summed):
        this_step().shapes_vary = True
    for number, total in zip(summed, all_reduce_sum_packed([requests[n].tensor for n in summed])):
        answers[number] = total
    for number, request in enumerate(requests):
        if request.axis is not None:
            answers[number] = _concatenated(request.tensor, request.axis)
    return answers


def _concatenated(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    order = [axis, *(n for n in range(tensor.shape.rank) if n != axis)]
    moved = tensor if axis == 0 else tf.transpose(tensor, order)
    step = this_step()
    if not moved.shape.is_fully_defined() or not isinstance(step.samples, int):
        step.shapes_vary = True
    whole = gather_outputs(moved, step)
    return whole if axis == 0 else tf.transpose(whole, [order.index(n) for n in range(len(order))])
