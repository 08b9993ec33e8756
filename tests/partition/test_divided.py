"""Programs that need no whole samples: what is small is exchanged, and the samples stay on their replicas."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from partition_in_parts import Parts

from unisono.trainer.partition.conversions import Replica
from unisono.trainer.partition.labels import label_sharded
from unisono.trainer.partition.operations import ROWS, ReplicaCall
from unisono.trainer.partition.program import Value

_R = np.random.default_rng(0)
X, SENTENCES = _R.normal(size=(7, 4)), _R.normal(size=(7, 5, 3))
LENGTHS = np.array([2, 4, 1, 3, 4, 2, 1], "int32")
W = _R.normal(size=(3, 2))


def _cut(s, lengths):
    """The sentences up to the longest one, and a gradient."""
    w = tf.constant(W)
    with tf.GradientTape() as tape:
        tape.watch(w)
        z = tf.tensordot(s[:, : tf.reduce_max(lengths)], w, 1)
        loss = tf.reduce_mean(z**2)
    return loss, tape.gradient(loss, w)


def _masked(s, lengths):
    longest = tf.reduce_max(lengths)
    mask = tf.sequence_mask(lengths, longest, dtype=s.dtype)
    return tf.reduce_sum(s[:, :longest] * mask[..., None]) / tf.reduce_sum(mask)


def _compare(x, first):
    return tf.reduce_mean((x - first) ** 2)


def _choose_in_a_branch(x):
    def chosen():
        return tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0) ** 2)

    return tf.cond(tf.reduce_max(x) > 0, chosen, lambda: tf.reduce_sum(x))


DIVIDED = {  # gathered and reduced inside, and in the results
    "cut to the longest sentence": (_cut, (0, 1, 0, 2), SENTENCES, LENGTHS),
    "mask of the longest sentence": (_masked, (0, 3, 0, 0), SENTENCES, LENGTHS),
    "chosen samples in a branch": (_choose_in_a_branch, (0, 1, 0, 1), X),
    "first sample": (lambda x: _compare(x, x[0]), (0, 1, 0, 1), X),
    "last sample": (lambda x: _compare(x, x[-1:]), (0, 1, 0, 1), X),
    "first sample of a slice": (lambda x: _compare(x[:, 1:], x[:1, 1:]), (0, 1, 0, 1), X),
    "number of a sample": (lambda x: _compare(x, x[2, 1]), (0, 1, 0, 1), X),
    "integers of a sample": (lambda s, y: y - y[3], (0, 1, 1, 0), SENTENCES, LENGTHS),
    "best sample": (lambda x: _compare(x, x[tf.argmax(x[:, 0])]), (0, 3, 0, 1), X),
    "best sample by a lookup": (lambda x: _compare(x, tf.gather(x, tf.argmax(x[:, 0]))), (0, 3, 0, 1), X),
    "trace of all pairs": (lambda x: tf.linalg.trace(x @ tf.transpose(x)), (1, 0, 0, 1), X),
    "diagonal of all pairs": (lambda x: tf.linalg.diag_part(x @ tf.transpose(x)), (1, 0, 1, 0), X),
}


@pytest.mark.parametrize("name", DIVIDED)
@pytest.mark.short("mask of the longest sentence", "number of a sample")
def test_samples_stay_on_their_replica(name):
    fn, communicated, *batch = DIVIDED[name]
    assert Parts(fn, *batch).check().communicated == communicated
    if "cut" in name or "first" in name:
        Parts(fn, *batch, open_axes=True).check()


@pytest.mark.long
def test_sample_outside_of_the_batch_is_an_error_as_on_one_device():
    for place in (-8, -1, 7):
        parts = Parts(lambda x, place=place: tf.gather(x, place) + tf.reduce_sum(x, 0), X)
        with pytest.raises(tf.errors.InvalidArgumentError):
            parts.on_one_device()
        for samples in ((3, 4), (6, 0, 1)):
            with pytest.raises(tf.errors.InvalidArgumentError):
                parts.on_replicas(samples)
    one = Parts(lambda x: tf.gather(x, -1) + tf.reduce_sum(x, 0), X[:1])
    with pytest.raises(tf.errors.InvalidArgumentError):
        one.on_replicas((1, 0))


@pytest.mark.parametrize(("places", "lost"), [([0, 3, 5], False), ([0, 3, 6], True), ([0, -1, 5], True)])
def test_entries_outside_of_a_part_are_not_lost_in_silence(places, lost):
    """On a GPU a lookup out of bounds is no error, and no proof that the entries of a sample are its own."""
    label = label_sharded(0)
    values = [Value(tf.float32, None), Value(tf.int32, None, (label,))]
    replica = Replica(0, 2, 3, 6, 0)
    call = ReplicaCall(None, values, [(label,)], [replica], lambda given: [tf.ones([6, 2])])
    given = [tf.ones([3, 2]), tf.constant(places), tf.constant(6)]
    (found,) = ROWS["UnsortedSegmentSum"].copy(call, given)
    assert np.isnan(found).all() == lost and np.isnan(found).any() == lost
