"""Sparse tensors: their samples are sliced, and gathered through `SparseRows`."""

from typing import Any

import tensorflow as tf


class SparseRows(tf.experimental.ExtensionType):
    """A sparse tensor in a form that supports gathering its matrix rows: `tf.SparseTensor` itself has no gather."""

    columns: tf.RaggedTensor
    """int64 `(batch, (entries), rank - 1)`; the columns of the entries of each sample."""
    values: tf.RaggedTensor
    """Any dtype, `(batch, (entries))`."""
    sample_shape: tf.Tensor
    """int64 `[rank - 1]`; the dense shape of one sample."""
    static_shape: tf.TensorShape
    """What is known of it while tracing."""


def sparse_rows(sparse: tf.SparseTensor) -> SparseRows:
    """Return `sparse` (entries in the order of matrix rows) as `SparseRows`, without copying the entries."""
    sparse = tf.sparse.reorder(sparse)
    rank = sparse.shape.rank
    splits = tf.RaggedTensor.from_value_rowids(
        sparse.values, sparse.indices[:, 0], nrows=sparse.dense_shape[0], validate=False
    ).row_splits
    columns = tf.ensure_shape(sparse.indices[:, 1:], [None, None if rank is None else rank - 1])
    return SparseRows(
        columns=tf.RaggedTensor.from_row_splits(columns, splits, validate=False),
        values=tf.RaggedTensor.from_row_splits(sparse.values, splits, validate=False),
        sample_shape=sparse.dense_shape[1:],
        static_shape=sparse.shape[1:],
    )


def slice_sparse(leaf: tf.SparseTensor, start: Any, stop: Any, samples: int | None) -> tf.SparseTensor:
    """Return samples `start` to `stop - 1`; `samples` is their number, where it is known while tracing."""
    start, stop = tf.cast(start, tf.int64), tf.cast(stop, tf.int64)
    rest = leaf.dense_shape[1:]
    begin = tf.concat([start[None], tf.zeros_like(rest)], 0)
    result = tf.sparse.slice(leaf, begin, tf.concat([(stop - start)[None], rest], 0))
    if leaf.shape.rank:
        result.set_shape([samples, *leaf.shape[1:]])
    return result


def sparse_tensor(columns: Any, values: Any, rows: SparseRows, samples: int | None) -> tf.SparseTensor:
    """Return some samples of `rows` as one `tf.SparseTensor`, numbered from 0."""
    indices = tf.concat([columns.value_rowids()[:, None], columns.values], 1)
    shape = tf.concat([values.nrows()[None], rows.sample_shape], 0)
    sparse = tf.SparseTensor(indices, values.values, shape)
    if rows.static_shape.rank is not None:
        sparse.set_shape([samples, *rows.static_shape])
    return sparse
