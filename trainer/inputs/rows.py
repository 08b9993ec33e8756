"""Rows of a batch, whatever it is made of: counting, slicing, gathering and joining them.

A structure is any nest of dense, string, ragged and sparse tensors, of extension types made of these, and of
None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class SparseRows(tf.experimental.ExtensionType):
    """A sparse tensor kept so that rows can be picked out of it: `tf.SparseTensor` itself has no gather.

    Attributes:
        columns: int64 `[rows, (entries), rank - 1]`; where the entries of each row stand in it.
        values: any dtype, `[rows, (entries)]`.
        row_shape: int64 `[rank - 1]`; the dense shape of one row.
    """

    columns: tf.RaggedTensor
    values: tf.RaggedTensor
    row_shape: tf.Tensor


def sparse_rows(sparse: tf.SparseTensor) -> SparseRows:
    """`sparse` (entries in row-major order) as `SparseRows`; the entries are not copied."""
    sparse = tf.sparse.reorder(sparse)
    rank = sparse.shape.rank
    splits = tf.RaggedTensor.from_value_rowids(
        sparse.values, sparse.indices[:, 0], nrows=sparse.dense_shape[0], validate=False
    ).row_splits
    columns = tf.ensure_shape(sparse.indices[:, 1:], [None, None if rank is None else rank - 1])
    return SparseRows(
        columns=tf.RaggedTensor.from_row_splits(columns, splits, validate=False),
        values=tf.RaggedTensor.from_row_splits(sparse.values, splits, validate=False),
        row_shape=sparse.dense_shape[1:],
    )


def row_count(structure: Any) -> Any:
    """The rows of a batch: an int where it is known while tracing, else an int32 scalar tensor.

    Args:
        structure: nest of tensors with the same rows; None leaves are passed over.

    Raises:
        ValueError: if there is no tensor in it.
    """
    dynamic = None
    for leaf in tf.nest.flatten(structure):
        if leaf is None:
            continue
        static = _static_rows(leaf)
        if static is not None:
            return static
        dynamic = leaf if dynamic is None or isinstance(leaf, tf.Tensor) else dynamic
    if dynamic is None:
        raise ValueError("The batch holds no tensor, so it has no rows; give at least one array with rows.")
    return _dynamic_rows(dynamic)


def _static_rows(leaf: Any) -> int | None:
    if is_extension(leaf):
        return _static_rows(_first_field(leaf))
    shape = getattr(leaf, "shape", None)
    if isinstance(leaf, SparseRows):
        shape = leaf.values.shape
    if shape is None:
        return None
    shape = tf.TensorShape(shape)
    if shape.rank is None or shape.rank == 0:
        return None
    return shape[0]


def _dynamic_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(out_type=tf.int32)
    if isinstance(leaf, SparseRows):
        return leaf.values.nrows(out_type=tf.int32)
    if isinstance(leaf, tf.Tensor | tf.Variable):
        return tf.shape(leaf)[0]
    return _dynamic_rows(_first_field(leaf))


def _first_field(leaf: Any) -> Any:
    return next(iter(_tensor_fields(leaf).values()))


def slice_rows(structure: Any, start: Any, stop: Any) -> Any:
    """Rows `start` to `stop - 1` of every tensor in the structure.

    Args:
        structure: nest of tensors.
        start: int or integer scalar tensor.
        stop: int or integer scalar tensor, not beyond the rows there are. Where both are ints the result's
            rows are known while tracing.

    Returns:
        A nest of the same structure and kinds. Gradients flow through it.

    Context: any; in a graph or eagerly.
    """
    return _map(lambda leaf: _slice_leaf(leaf, start, stop), structure)


def take_rows(structure: Any, start: Any, rows: int) -> Any:
    """`rows` rows from `start` on: as `slice_rows`, where their number is a constant and `start` need not be one."""
    return _map(lambda leaf: _slice_leaf(leaf, start, start + rows, rows), structure)


def _slice_leaf(leaf: Any, start: Any, stop: Any, rows: int | None = None) -> Any:
    if rows is None and isinstance(start, int) and isinstance(stop, int):
        rows = stop - start
    if is_extension(leaf):
        return _by_fields(lambda part: _slice_leaf(part, start, stop, rows), leaf)
    if isinstance(leaf, tf.SparseTensor):
        return _slice_sparse(leaf, start, stop, rows)
    if isinstance(leaf, SparseRows):
        return _dense_coordinates(leaf.columns[start:stop], leaf.values[start:stop], leaf.row_shape, rows)
    if isinstance(leaf, tf.Tensor | tf.Variable) and leaf.shape.rank is not None:
        rest = [-1] * (leaf.shape.rank - 1)
        size = rows if rows is not None else tf.cast(stop, tf.int32) - tf.cast(start, tf.int32)
        begin = (
            tf.stack([tf.cast(start, tf.int32), *([0] * len(rest))]) if not isinstance(start, int) else None
        )
        if begin is None:
            begin = [start, *([0] * len(rest))]
        part = tf.slice(leaf, begin, [size, *rest])
        part.set_shape([rows, *leaf.shape[1:]])
        return part
    return _with_rows(leaf[start:stop], rows)


def _with_rows(leaf: Any, rows: int | None) -> Any:
    if rows is not None and isinstance(leaf, tf.Tensor) and leaf.shape.rank:
        leaf.set_shape([rows, *leaf.shape[1:]])
    return leaf


def _slice_sparse(leaf: tf.SparseTensor, start: Any, stop: Any, rows: int | None) -> tf.SparseTensor:
    start, stop = tf.cast(start, tf.int64), tf.cast(stop, tf.int64)
    row = leaf.indices[:, 0]
    kept = tf.logical_and(row >= start, row < stop)
    indices = tf.boolean_mask(leaf.indices, kept)
    offset = tf.concat([start[None], tf.zeros_like(leaf.dense_shape[1:])], 0)
    shape = tf.concat([(stop - start)[None], leaf.dense_shape[1:]], 0)
    result = tf.SparseTensor(indices - offset, tf.boolean_mask(leaf.values, kept), shape)
    return _with_static_shape(result, [rows, *leaf.shape[1:]] if leaf.shape.rank else None)


def _with_static_shape(sparse: tf.SparseTensor, shape: Any) -> tf.SparseTensor:
    if shape is not None:
        sparse.set_shape(tf.TensorShape(shape))
    return sparse


def gather_rows(structure: Any, indices: tf.Tensor) -> Any:
    """The rows with the given numbers, in that order.

    Args:
        structure: nest of tensors; `SparseRows` give a `tf.SparseTensor`.
        indices: integer vector.

    Returns:
        A nest of the same structure.
    """
    return _map(lambda leaf: _gather_leaf(leaf, indices), structure)


def is_extension(leaf: Any) -> bool:
    """Whether it is an extension type of a user's own: a record of tensors that all have its rows."""
    return isinstance(leaf, tf.experimental.ExtensionType) and not isinstance(leaf, SparseRows)


def _tensor_fields(leaf: Any) -> dict[str, Any]:
    return {name: v for name, v in vars(leaf).items() if tf.is_tensor(v) or is_extension(v)}


def _by_fields(fn: Callable[..., Any], *leaves: Any) -> Any:
    """Applies `fn` to every tensor of records of one type; their other fields are those of the first."""
    fields = {name: v for name, v in vars(leaves[0]).items() if not name.startswith("_")}
    for name in _tensor_fields(leaves[0]):
        fields[name] = fn(*(getattr(leaf, name) for leaf in leaves))
    return type(leaves[0])(**fields)


def _gather_leaf(leaf: Any, indices: tf.Tensor) -> Any:
    if is_extension(leaf):
        return _by_fields(lambda part: _gather_leaf(part, indices), leaf)
    if isinstance(leaf, tf.SparseTensor):
        leaf = sparse_rows(leaf)
    if isinstance(leaf, SparseRows):
        rows = indices.shape[0] if indices.shape.rank else None
        columns, values = tf.gather(leaf.columns, indices), tf.gather(leaf.values, indices)
        return _dense_coordinates(columns, values, leaf.row_shape, rows)
    return tf.gather(leaf, indices)


def _dense_coordinates(columns: Any, values: Any, row_shape: tf.Tensor, rows: int | None) -> tf.SparseTensor:
    """Rows of entries as one `tf.SparseTensor`, its rows numbered from 0."""
    indices = tf.concat([columns.value_rowids()[:, None], columns.values], 1)
    shape = tf.concat([values.nrows()[None], row_shape], 0)
    rest = tf.get_static_value(row_shape)
    count = row_shape.shape[0]
    sparse = tf.SparseTensor(indices, values.values, shape)
    if rest is not None:
        return _with_static_shape(sparse, [rows, *[int(size) for size in rest]])
    return _with_static_shape(sparse, [rows, *([None] * count)] if count is not None else None)


def concat_rows(structures: Sequence[Any]) -> Any:
    """Joins structures of the same kind along their rows, in order.

    Args:
        structures: list of nests of one structure, at least one.

    Returns:
        A nest of the same structure. Sparse tensors are joined to the widest of them.
    """
    if len(structures) == 1:
        return structures[0]
    return _map_many(_concat_leaves, structures)


def _concat_leaves(*leaves: Any) -> Any:
    if leaves[0] is None:
        return None
    if is_extension(leaves[0]):
        return _by_fields(_concat_leaves, *leaves)
    if isinstance(leaves[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(leaves), expand_nonconcat_dims=True)
    return tf.concat(list(leaves), 0)


def batch_spec(structure: Any) -> Any:
    """The nest of `tf.TypeSpec` of one batch of the structure: its rows are None."""
    return _map(spec_without_rows, structure)


def spec_without_rows(leaf: Any) -> Any:
    """The `tf.TypeSpec` of a tensor or the given one, with the row dimension None; None for None."""
    if leaf is None:
        return None
    if is_extension(leaf):
        none = tf.type_spec_from_value(slice_rows(leaf, 0, 0))
        return tf.type_spec_from_value(leaf).most_specific_common_supertype([none]) or none
    spec = leaf if isinstance(leaf, tf.TypeSpec) else tf.type_spec_from_value(leaf)
    if isinstance(spec, SparseRows.Spec):
        parts = (spec_without_rows(spec.columns), spec_without_rows(spec.values), spec.row_shape)
        return SparseRows.Spec(*parts)
    if isinstance(spec, tf.TensorSpec):
        shape = spec.shape if spec.shape.rank is None else [None, *spec.shape[1:]]
        return tf.TensorSpec(shape, spec.dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        shape = spec.shape if spec.shape.rank is None else [None, *spec.shape[1:]]
        return tf.SparseTensorSpec(shape, spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        shape = spec.shape if spec.shape.rank is None else [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return spec


def _map(fn: Callable[[Any], Any], structure: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: None if leaf is None else fn(leaf), structure)


def _map_many(fn: Callable[..., Any], structures: Sequence[Any]) -> Any:
    return tf.nest.map_structure(fn, *structures)
