"""Compares the shapes, numbers, bounds and progressions that a partitioned program knows with those of one device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from partition_in_parts import Parts

from unisono.trainer.partition.program import Copy, Value
from unisono.trainer.partition.sizes.size import Size

ROUNDING = {8: 1e-12, 4: 1e-5, 2: 1e-2}  # of a bound that is computed in another precision

NOT_UNIQUE = {"BroadcastGradientArgs"}
"""A sum over an axis with one entry may be named or not, so neither are the axes unique nor the shape of the sum."""


def find_false_value(parts: Parts, batches: Mapping[int, Sequence[Any]]) -> str | None:
    """What is said of a value and is not so for one of these batches; None: all of it is right."""
    graph, program = parts.graph, parts.program
    said = [
        (tensor, program.values[number])
        for node in program.nodes
        if isinstance(node, Copy) and node.op.graph is graph and graph.is_fetchable(node.op)
        for tensor, number in zip(node.op.outputs, node.outputs)
        if tensor.dtype not in (tf.variant, tf.resource)
        and NOT_UNIQUE.isdisjoint(each.type for each in (node.op, *(given.op for given in node.op.inputs)))
    ]
    if graph.captures or not said:
        return None
    with tf.compat.v1.Session(graph=graph) as session:
        for batch in batches.values():
            given = {tensor.name: array for tensor, array in zip(graph.inputs, batch)}
            sizes: dict[Any, int] = {}
            for number, array in zip(program.inputs, batch):
                for extent, actual in zip(program.values[number].shape or (), array.shape):
                    if isinstance(extent, Size):
                        sizes.update({each: actual for term in extent.terms for each in term})
            try:
                found = session.run([tensor for tensor, _ in said], given)
            except tf.errors.OpError:  # an operation whose results are not needed fails
                continue
            for (tensor, value), array in zip(said, map(np.asarray, found)):
                if not tensor.shape.is_compatible_with(array.shape):  # TensorFlow's own shape is wrong
                    continue
                if (reason := _contradiction(value, array, sizes)) is not None:
                    return f"{tensor.op.type} {tensor.name}: {reason}"
    return None


def _contradiction(value: Value, array: np.ndarray, sizes: Mapping[Any, int]) -> str | None:
    if value.shape is not None:
        shape = [_at(extent, sizes) for extent in value.shape]
        if len(shape) != array.ndim or any(a not in (None, b) for a, b in zip(shape, array.shape)):
            return f"has shape {array.shape} and not {value.shape}"
    if value.constant is not None:
        numbers = [_at(each, sizes) for each in value.constant.ravel()]
        if value.constant.shape != array.shape:
            return f"has numbers {array} and not {value.constant}"
        if any(a is not None and a != b for a, b in zip(numbers, array.ravel().tolist())):
            return f"has numbers {array} and not {value.constant}"
    return _outside(value, array) or _no_progression(value, array, sizes)


def _at(size: Any, sizes: Mapping[Any, int]) -> Any:
    """A size for these numbers of samples; None: it depends on others."""
    if not isinstance(size, Size):
        return size
    if any(each not in sizes for term in size.terms for each in term):
        return None
    return sum(factor * math.prod(sizes[each] for each in term) for term, factor in size.terms.items())


def _outside(value: Value, array: np.ndarray) -> str | None:
    low, high = value.interval
    if array.dtype.kind not in "fiu" or not array.size:
        return None
    numbers = array.ravel()[~np.isnan(array.ravel())] if array.dtype.kind == "f" else array.ravel()
    if not numbers.size:
        return None
    least, most = float(numbers.min()), float(numbers.max())
    rounding = ROUNDING.get(array.dtype.itemsize, 0) if array.dtype.kind == "f" else 0
    slack = [rounding * max(1.0, abs(each)) if math.isfinite(each) else 0 for each in (low, high)]
    if least < low - slack[0] or most > high + slack[1]:
        return f"has numbers from {least} to {most}, which are not within {value.interval}"
    return None


def _no_progression(value: Value, array: np.ndarray, sizes: Mapping[Any, int]) -> str | None:
    said = value.progression
    repeat = None if said is None else _at(said.repeat, sizes)
    if said is None or not repeat:
        return None
    numbers = array[..., 0] if said.column else array
    places = np.arange(numbers.shape[said.axis]) // repeat * said.stride
    rest = np.moveaxis(numbers, said.axis, -1) - places
    if rest.size and (rest.min() < said.low or rest.max() > said.high):
        return f"has numbers {array.ravel()[:9]}, which are no {said}"
    return None
