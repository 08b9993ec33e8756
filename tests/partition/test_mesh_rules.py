"""Every rule along the axis of the model: weights and batches in parts, against one device."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from mesh_in_parts import MeshParts
from partition_programs import PROGRAMS, SINGLE

UNEVEN = ((3, 4), (6, 0, 1))
CASES = [
    (name, number, axis)
    for name, (_, *batch) in PROGRAMS.items()
    for number, array in enumerate(batch)
    for axis in range(1, np.ndim(array))
    if np.shape(array)[axis] % 2 == 0 and np.asarray(array).dtype.kind in "fi"
]


@pytest.mark.parametrize(("name", "number", "axis"), CASES)
@pytest.mark.short("dense cross-entropy-0-1")
def test_program_of_a_batch_in_parts_along_two_axes_matches_one_device(name, number, axis):
    fn, *batch = PROGRAMS[name]
    array = np.asarray(batch[number])
    shape = [extent if n == axis else 1 for n, extent in enumerate(array.shape)]
    neutral = np.zeros(shape, array.dtype)

    def with_parts(*tensors):
        *given, weight = tensors
        given[number] = given[number] + weight
        return fn(*given)

    samples = [tuple(len(batch[0]) * n // 7 for n in parts) for parts in UNEVEN]
    parts = MeshParts(with_parts, batch, [(neutral, axis)])
    parts.check(samples, tolerance=1e-5 if name in SINGLE else 1e-12)


def test_split_in_whole_blocks_keeps_the_parts_of_each():
    random = np.random.default_rng()

    def fn(x, weight):
        columns = tf.concat([x @ weight, tf.square(x @ weight)], 1)
        return tf.split(columns, [6, -1], 1)

    parts = MeshParts(fn, [random.normal(size=(7, 3))], [(random.normal(size=(3, 6)), 1)])
    parts.check(UNEVEN, tolerance=1e-12)
    assert not parts.gathers
