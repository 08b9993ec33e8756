"""Random numbers on an axis of a model: those of one device, drawn in parts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from mesh_in_parts import MeshParts

from unisono.trainer.partition.program import Copy

R = np.random.default_rng(0)
BATCH = R.normal(size=(7, 3, 4))
KERNEL = R.normal(size=(4, 10))
SEED = R.integers(0, 1000, (7, 2)).astype("int32")  # of the batch, so that it is not the same in each step


def seed_of(seeds):
    return tf.reduce_max(seeds, 0)


def dropped(x, seeds, kernel):
    h = tf.tanh(x @ kernel)
    return tf.reduce_sum(tf.nn.experimental.stateless_dropout(h, 0.4, seed=seed_of(seeds)) ** 2, [1, 2])


def with_noise(x, seeds, kernel):
    h = x @ kernel
    return tf.reduce_sum(
        (h + tf.random.stateless_normal(tf.shape(h), seed_of(seeds), 1.0, 2.0, h.dtype)) ** 2
    )


def heads(x, seeds, kernel):
    """An axis in the middle is divided."""
    h = tf.transpose(tf.reshape(x @ kernel, [-1, 3, 2, 5]), [0, 2, 1, 3])
    return tf.reduce_sum(tf.nn.experimental.stateless_dropout(h, 0.4, seed=seed_of(seeds)) ** 2)


def single(x, seeds, kernel):
    h = tf.cast(x @ kernel, tf.float32)
    h = tf.nn.experimental.stateless_dropout(h, 0.4, seed=seed_of(seeds))
    return tf.cast(tf.reduce_sum(h**2), tf.float64)


def truncated(x, seeds, kernel):
    h = x @ kernel
    return tf.reduce_sum(h * tf.random.stateless_truncated_normal(tf.shape(h), seed_of(seeds), dtype=h.dtype))


def with_gradient(fn):
    def both(x, seeds, kernel):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            out = fn(x, seeds, kernel)
        return out, tape.gradient(out, kernel)

    return both


PROGRAMS = {
    "dropout": dropped,
    "noise": with_noise,
    "heads": heads,
    "float32": single,
    "truncated": truncated,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.long
def test_draws_along_a_model_are_those_of_one_device(name):
    parts = MeshParts(with_gradient(PROGRAMS[name]), [BATCH, SEED], [(KERNEL, 1)])
    # One device's numbers are those of the first replica along the batch; the second has no samples.
    parts.check([(7,), (7, 0)], tolerance=1e-6 if name == "float32" else 1e-12)


def test_backward_pass_of_dropout_reads_a_part_of_the_mask():
    """A replica draws the mask of all parts, and keeps its own for the backward pass."""
    parts = MeshParts(with_gradient(dropped), [BATCH, SEED], [(KERNEL, 1)])
    values, nodes = parts.program.values, [n for n in parts.program.nodes if isinstance(n, Copy)]
    chosen = [node for node in nodes if node.op.type == "SelectV2"]
    assert len(chosen) >= 2
    assert all(values[node.inputs[0]].labels[1].is_sharded for node in chosen)
