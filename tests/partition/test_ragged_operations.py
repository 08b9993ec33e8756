"""Operations on ragged values, offsets and positions that the steps of the other tests have not: right, gathered or not."""

import numpy as np
import pytest
import tensorflow as tf
from partition.test_ragged import IDS, OTHERS, VECTORS, X, Y, entropy, look_up, mean, total, with_gradient
from partition_in_parts import Parts

SAME = VECTORS.with_values(tf.constant(np.random.default_rng(8).normal(size=VECTORS.flat_values.shape)))
PROGRAMS = {
    "two arrays, same offsets": (lambda a, b: total(a.with_values(a.values * b.values), 1), VECTORS, SAME),
    "labels of words": (
        with_gradient(lambda t, w, ids, v: mean(entropy(ids.flat_values % 3, v.flat_values @ w))),
        IDS,
        VECTORS,
    ),
    "last": (
        lambda v: tf.gather(v.values, tf.maximum(v.row_limits() - 1, 0)),
        tf.RaggedTensor.from_row_lengths(VECTORS.values, [2, 1, 3, 1, 1, 3, 1]),
    ),
    "sum of unique": (lambda ids: [tf.unique(ids.values)[0], tf.unique(ids.values)[1]], IDS),
    "concat sum": (
        lambda a, b: [
            total(tf.concat([a.values, b.values], 0) ** 2),
            tf.concat([a.values, b.values], 0)[:3],
            tf.cumsum(tf.concat([a.values, b.values], 0)),
            tf.shape(tf.concat([a.values, b.values], 0)),
        ],
        VECTORS,
        OTHERS.with_values(tf.constant(np.random.default_rng(8).normal(size=(9, 3)))),
    ),
    "one pool of two arrays": (
        with_gradient(
            lambda t, w, a, b, y: mean(
                entropy(
                    y,
                    tf.math.unsorted_segment_sum(
                        look_up(t, tf.concat([a.values, b.values], 0)),
                        tf.concat([a.value_rowids(), b.value_rowids()], 0),
                        a.nrows(),
                    )
                    @ w,
                )
            )
        ),
        IDS,
        OTHERS,
        Y,
    ),
    "dense and ragged of one table": (
        with_gradient(lambda t, w, ids, y: mean(total(look_up(t, ids), 1) * tf.gather(t, y))),
        IDS,
        Y,
    ),
    "starts + starts": (
        lambda v: [
            v.row_starts() + v.row_starts(),
            v.row_starts() - v.row_limits(),
            v.row_limits() * 2,
            5 - v.row_starts(),
            v.row_starts() > 2,
            tf.reduce_max(v.row_limits()),
            tf.reduce_sum(v.row_starts()),
        ],
        VECTORS,
    ),
    "places + range": (
        lambda v: [
            v.row_starts() + tf.range(v.nrows()),
            tf.where(v.row_lengths() > 1, v.row_starts(), v.row_limits()),
        ],
        VECTORS,
    ),
    "where on values": (
        lambda v: [tf.boolean_mask(v.values, v.values[:, 0] > 0), tf.where(v.values[:, 0] > 0)],
        VECTORS,
    ),
    "range of values": (
        lambda v: [
            tf.range(tf.shape(v.values)[0]),
            tf.gather(v.values, tf.range(tf.shape(v.values)[0])),
            tf.cast(v.value_rowids(), tf.int64) + tf.range(v.row_splits[-1]),
        ],
        VECTORS,
    ),
    "row splits of ranges": (
        lambda v: [
            (r := tf.ragged.range(v.row_lengths())).values,
            r.row_splits,
            tf.ragged.range(v.row_starts(), v.row_limits()).values,
        ],
        VECTORS,
    ),
    "slices": (
        lambda v: [
            v[:, 1:].to_tensor(),
            v[:, ::2].to_tensor(),
            v[:, -2:].values,
            v[1:4].values,
            v[:, :2].row_splits,
        ],
        VECTORS,
    ),
    "ids to splits": (
        lambda v: tf.reduce_sum(tf.RaggedTensor.from_value_rowids(v.values, v.value_rowids(), v.nrows()), 1),
        VECTORS,
    ),
    "lengths to splits": (
        lambda v: tf.reduce_sum(tf.RaggedTensor.from_row_lengths(v.values, v.row_lengths()), 1),
        VECTORS,
    ),
    "splits validated": (
        lambda v: tf.reduce_sum(tf.RaggedTensor.from_row_splits(v.values * 2.0, v.row_splits), 1),
        VECTORS,
    ),
    "ids of scatter": (lambda v: tf.scatter_nd(v.value_rowids()[:, None], v.values, [v.nrows(), 3]), VECTORS),
    "tensor scatter": (
        lambda v, x: tf.tensor_scatter_nd_add(x, v.value_rowids()[:, None], v.values),
        VECTORS,
        X,
    ),
    "one hot of ids": (
        lambda v: [
            tf.one_hot(v.value_rowids(), 7),
            tf.reduce_max(v.value_rowids()),
            tf.cast(v.value_rowids(), tf.float64) * v.values[:, 0],
        ],
        VECTORS,
    ),
    "segment sums": (
        lambda v: [
            tf.math.segment_sum(v.values, v.value_rowids()),
            tf.math.unsorted_segment_prod(v.values, v.value_rowids(), v.nrows()),
            tf.math.unsorted_segment_mean(v.values, v.value_rowids(), v.nrows()),
            tf.math.unsorted_segment_sum(v.values, v.value_rowids() % 3, 3),
            tf.math.unsorted_segment_sum(v.values, v.value_rowids(), 9),
        ],
        VECTORS,
    ),
    "embedding sums": (
        with_gradient(
            lambda t, w, ids, y: (
                mean(tf.nn.embedding_lookup_sparse(t, ids + 0, None, combiner="mean")[:1])
                + mean(tf.cast(y, tf.float64))
            )
        ),
        IDS.with_values(IDS.values),
        Y,
    ),
    "loop over time": (
        lambda v: tf.while_loop(
            lambda i, z, v: i < 3,
            lambda i, z, v: (i + 1, z + total(v, 1), v),
            [0, tf.zeros([7, 3], tf.float64), v],
        )[1],
        VECTORS,
    ),
    "branch with ragged": (
        lambda v: total(tf.cond(mean(v.values) > 0, lambda: v * 2.0, lambda: v), 1),
        VECTORS,
    ),
    "sort": (
        lambda v: [
            tf.argsort(v.values, 0),
            tf.reverse(v.values, [0]),
            v.values[0],
            v.values[-1],
            v.values[2:5],
        ],
        VECTORS,
    ),
    "normalised": (
        lambda v: total(v.with_values((v.values - mean(v.values, 0)) / tf.math.reduce_std(v.values, 0)), 1),
        VECTORS,
    ),
    "pairs": (lambda v: mean(tf.matmul(v.values, v.values, transpose_b=True) ** 2), VECTORS),
    "split values": (
        lambda v: [
            tf.concat([v.values, v.values], 0),
            tf.tile(v.values, [2, 1]),
            tf.reshape(v.values, [-1]),
            tf.repeat(v.values, 2, 0),
        ],
        VECTORS,
    ),
    "to sparse": (
        lambda v: [(s := v.with_values(v.values[:, 0]).to_sparse()).indices, s.values, s.dense_shape],
        VECTORS,
    ),
    "stack": (lambda v: tf.ragged.stack([v, v], 1).to_tensor(), VECTORS),
    "broadcast": (
        lambda v, x: total(v + tf.RaggedTensor.from_tensor(x[:, None], ragged_rank=1), 1),
        VECTORS,
        X,
    ),
    "bincount": (lambda ids: tf.math.bincount(tf.cast(ids.values, tf.int32), minlength=6, maxlength=6), IDS),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.short(
    "last",
    "sum of unique",
    "concat sum",
    "starts + starts",
    "places + range",
    "where on values",
    "range of values",
    "row splits of ranges",
    "lengths to splits",
    "ids of scatter",
    "tensor scatter",
    "embedding sums",
    "pairs",
    "stack",
    "broadcast",
)
def test_operation_on_ragged_values_matches_the_whole(name):
    fn, *batch = PROGRAMS[name]
    Parts(fn, *batch).check(parts=((3, 4), (2, 3, 2), (6, 0, 1)))


def test_values_of_two_arrays_are_combined_where_they_are_and_the_step_checks_their_lengths():
    fn, *batch = PROGRAMS["labels of words"]
    program = Parts(fn, *batch).program
    assert program.equal_values == [[0, 2]] and not Parts(fn, *batch).communicated[0]


def test_two_uses_of_a_table_gather_nothing():
    fn, *batch = PROGRAMS["dense and ragged of one table"]
    assert not Parts(fn, *batch).communicated[0]
