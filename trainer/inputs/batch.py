"""A batch: its structure, and functions that count, slice, gather and concatenate its samples.

A batch is a nest of tensors of any kind and of None. A scalar in it has no samples: it belongs to the whole batch.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .sparse import SparseRows, slice_sparse, sparse_rows, sparse_tensor


def is_standard(batch: Any) -> bool:
    """Return whether Keras' own steps accept the batch, or the spec of one: all but tuples of more than three."""
    return not isinstance(batch, tuple | list) or 1 <= len(batch) <= 3


def unpack(batch: Any) -> tuple[Any, Any, Any]:
    """Return `(x, y, sample_weight)` of a batch or the spec of one; a structure unknown to Keras counts as x."""
    return keras.utils.unpack_x_y_sample_weight(batch) if is_standard(batch) else (batch, None, None)


def name_parts(batch: Any) -> list[tuple[str, Any]]:
    """Return the parts of a batch with their names in messages: x, y, sample_weight, or data[0], data[1], ..."""
    if not isinstance(batch, tuple):
        return [("x", batch)]
    if is_standard(batch):
        return list(zip(("x", "y", "sample_weight"), batch))
    return [(f"data[{index}]", part) for index, part in enumerate(batch)]


def name_leaves(
    name: str, structure: Any, is_leaf: Callable[[Any], bool] = lambda part: False
) -> list[tuple[str, Any]]:
    """Return the leaves of a nest with their paths: `x['image']`, `y[0]`."""
    if is_leaf(structure) or not isinstance(structure, dict | list | tuple):
        return [(name, structure)]
    items = structure.items() if isinstance(structure, dict) else enumerate(structure)
    return [leaf for key, part in items for leaf in name_leaves(f"{name}[{key!r}]", part, is_leaf)]


def all_leaves(batch: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a batch (or of its spec) with their paths."""
    return [leaf for name, part in name_parts(batch) for leaf in name_leaves(name, part)]


def name_arrays(batch: Any) -> list[tuple[str, Any]]:
    """Return the arrays of a batch (or of its spec) that have samples, with their paths."""
    return [(path, leaf) for path, leaf in all_leaves(batch) if leaf is not None and not is_scalar(leaf)]


def sample_count(structure: Any) -> Any:
    """Return the samples of a batch, an int or int32 scalar tensor; reject batches of None and scalars alone."""
    leaves = [
        _one_tensor(leaf) for leaf in tf.nest.flatten(structure) if leaf is not None and not is_scalar(leaf)
    ]
    if not leaves:
        raise ValueError("The batch has no tensor, so it has no samples: pass at least one array.")
    for leaf in leaves:
        shape = tf.TensorShape(getattr(leaf, "shape", None))  # pyright: ignore[reportArgumentType]
        if shape.rank and shape[0] is not None:
            return shape[0]
    leaf = next((leaf for leaf in leaves if isinstance(leaf, tf.Tensor)), leaves[0])
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(out_type=tf.int32)
    return tf.cast(leaf.dense_shape[0] if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)[0], tf.int32)


def is_scalar(leaf: Any) -> bool:
    """Return whether a tensor, or the spec of one, certainly has no dimension."""
    return isinstance(leaf, tf.Tensor | tf.TensorSpec) and leaf.shape.rank == 0


def is_memory_mapped(leaf: Any) -> bool:
    """Return whether the samples of an array are in a file, as those of an `np.memmap` or a view of one."""
    while isinstance(leaf, np.ndarray):
        if isinstance(leaf, np.memmap):
            return True
        leaf = leaf.base
    return False


def _one_tensor(leaf: Any) -> Any:
    """Return the leaf, or for a composite one a component with the same number of samples."""
    while is_extension(leaf):
        leaf = next(iter(_tensor_fields(leaf).values()))
    return leaf.values if isinstance(leaf, SparseRows) else leaf


def slice_samples(
    structure: Any, start: Any, stop: Any, samples: int | None = None, device: str | None = None
) -> Any:
    """Return samples `start` to `stop - 1` of every tensor in the structure; gradients flow through it.

    `start` and `stop` are ints or integer scalar tensors, at most the number of samples. `samples` is their difference,
    where that is known while tracing. `device` slices the tensors; None: TensorFlow's choice.
    """
    if isinstance(start, int) and isinstance(stop, int):
        samples = stop - start
    return map_leaves(lambda leaf: _slice_leaf(leaf, start, stop, samples, device), structure)


def _slice_leaf(leaf: Any, start: Any, stop: Any, samples: int | None, device: str | None) -> Any:
    if is_scalar(leaf):
        return leaf
    if isinstance(leaf, tf.Tensor | tf.Variable) and leaf.shape.rank is not None:
        return _slice_dense(leaf, start, stop, samples, device)
    with on_device(device):
        if isinstance(leaf, tf.SparseTensor):
            return slice_sparse(leaf, start, stop, samples)
        if isinstance(leaf, SparseRows):
            columns, values = leaf.columns[start:stop], leaf.values[start:stop]
            return sparse_tensor(columns, values, leaf, samples)
        return leaf[start:stop]


def _slice_dense(leaf: Any, start: Any, stop: Any, samples: int | None, device: str | None) -> tf.Tensor:
    others = leaf.shape.rank - 1
    with on_device(device and "CPU:0"):  # the begin of a slice is read on the host, wherever the tensor is
        size = samples if samples is not None else tf.cast(stop, tf.int32) - tf.cast(start, tf.int32)
        begin = start if isinstance(start, int) else tf.cast(start, tf.int32)
        begin = tf.convert_to_tensor([begin, *[0] * others])
        size = tf.convert_to_tensor([size, *[-1] * others])
    with on_device(device):
        part = tf.slice(leaf, begin, size)
    part.set_shape([samples, *leaf.shape[1:]])
    return part


def on_device(device: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return a device scope; None: TensorFlow's choice."""
    return contextlib.nullcontext() if device is None else tf.device(device)


def take_samples(structure: Any, indices: tf.Tensor) -> Any:
    """Return the samples with these numbers, an integer vector, in that order; of `SparseRows` a `tf.SparseTensor`."""
    return map_leaves(lambda leaf: _take_leaf(leaf, indices), structure)


def is_extension(leaf: Any) -> bool:
    """Return whether it is a user's extension type: a record of tensors with the same number of samples."""
    return isinstance(leaf, tf.experimental.ExtensionType) and not isinstance(leaf, SparseRows)


def _tensor_fields(leaf: Any) -> dict[str, Any]:
    return {name: v for name, v in vars(leaf).items() if tf.is_tensor(v) or is_extension(v)}


def _take_leaf(leaf: Any, indices: tf.Tensor) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        leaf = sparse_rows(leaf)
    if isinstance(leaf, SparseRows):
        samples = indices.shape[0] if indices.shape.rank else None
        columns, values = tf.gather(leaf.columns, indices), tf.gather(leaf.values, indices)
        return sparse_tensor(columns, values, leaf, samples)
    return tf.gather(leaf, indices)


def concat_samples(structures: Sequence[Any]) -> Any:
    """Concatenate nests of one structure, at least one, along their samples. Sparse tensors get the widest shape."""
    return structures[0] if len(structures) == 1 else map_leaves(_concat_leaves, *structures)


def _concat_leaves(*leaves: Any) -> Any:
    if isinstance(leaves[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(leaves), expand_nonconcat_dims=True)
    return tf.concat(list(leaves), 0)


def sample_counts(structure: Any) -> list[Any]:
    """Return the number of samples of every array of a batch: ints where known while tracing, else int32 scalar tensors."""
    return [sample_count(leaf) for _, leaf in name_arrays(structure)]


def unit_count(structure: Any) -> Any:
    """Return the units of a batch whose arrays may have different numbers of samples: an int, or an int32 scalar tensor.

    Their number is the greatest common divisor: 8 and 56 samples are 8 units of one sample and of seven. So a part with
    some of the units has the same share of every array, and means over any of them are reduced by that share.
    """
    counts = sample_counts(structure)
    if all(isinstance(count, int) for count in counts):
        return math.gcd(*counts)
    if len(counts) == 1:
        return counts[0]
    with tf.device("CPU:0"):
        stacked = tf.stack(counts)
        stacked = tf.where(stacked == 0, tf.reduce_max(stacked), stacked)  # 0 and n have the divisors of n
        divisors = tf.range(1, tf.reduce_min(stacked) + 1)
        common = tf.reduce_all(stacked[:, None] % divisors == 0, axis=0)
        # The maximum of no numbers is negative.
        return tf.maximum(0, tf.reduce_max(tf.boolean_mask(divisors, common)))


def slice_units(structure: Any, first: Any, last: Any, units: Any, device: str | None = None) -> Any:
    """Return units `first` to `last - 1` of a batch that has `units` of them; arguments as of `slice_samples`."""

    def part(leaf: Any) -> Any:
        if is_scalar(leaf):
            return leaf
        each = sample_count(leaf) // (max(units, 1) if isinstance(units, int) else tf.maximum(units, 1))
        return slice_samples(leaf, first * each, last * each, device=device)

    return map_leaves(part, structure)


def batch_spec(structure: Any) -> Any:
    """Return the nest of `tf.TypeSpec` of one batch of the structure: its number of samples is None."""
    return tf.nest.map_structure(open_spec, structure)


def open_spec(leaf: Any) -> Any:
    """Return the `tf.TypeSpec` of an array or a spec, with an open number of samples; None for None."""
    if is_extension(leaf):
        none = tf.type_spec_from_value(slice_samples(leaf, 0, 0))
        return tf.type_spec_from_value(leaf).most_specific_common_supertype([none]) or none
    spec = leaf if isinstance(leaf, tf.TypeSpec) else tf.type_spec_from_value(leaf)
    if spec == tf.type_spec_from_value(None):
        return None
    if isinstance(spec, SparseRows.Spec):
        return SparseRows.Spec(
            open_spec(spec.columns), open_spec(spec.values), spec.sample_shape, spec.static_shape
        )
    if not isinstance(spec, tf.TensorSpec | tf.SparseTensorSpec | tf.RaggedTensorSpec) or is_scalar(spec):
        return spec
    shape = spec.shape if spec.shape.rank is None else [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    kind = tf.SparseTensorSpec if isinstance(spec, tf.SparseTensorSpec) else tf.TensorSpec
    return kind(shape, spec.dtype)


def of_size(spec: Any, samples: int | None) -> Any:
    """Return the spec of a batch whose dense arrays have this number of samples, where theirs is open."""

    def close(leaf: Any) -> Any:
        is_open = isinstance(leaf, tf.TensorSpec) and leaf.shape.rank and leaf.shape[0] is None
        return tf.TensorSpec([samples, *leaf.shape[1:]], leaf.dtype) if is_open else leaf

    return tf.nest.map_structure(close, spec)


def varies(leaf: Any) -> bool:
    """Return whether an array of a batch, or its spec, may have another shape in another batch."""
    dense = isinstance(leaf, tf.Tensor | tf.TensorSpec) and bool(leaf.shape.rank)
    return dense and not leaf.shape[1:].is_fully_defined()


def of_sizes(spec: Any, sizes: Iterator[Any]) -> Any:
    """Return the spec of a batch with all `sizes` after the samples of the arrays that vary."""

    def close(leaf: Any) -> Any:
        return tf.TensorSpec([None, *(int(next(sizes)) for _ in leaf.shape[1:])], leaf.dtype)

    return tf.nest.map_structure(lambda leaf: close(leaf) if varies(leaf) else leaf, spec)


def map_leaves(fn: Callable[..., Any], *structures: Any) -> Any:
    """Map `fn` over the leaves of nests of one structure, and the tensors of records; keep other fields of the first."""

    def apply(*leaves: Any) -> Any:
        first = leaves[0]
        if first is None:
            return None
        if not is_extension(first):
            return fn(*leaves)
        fields = {name: v for name, v in vars(first).items() if not name.startswith("_")}
        for name in _tensor_fields(first):
            fields[name] = apply(*(getattr(leaf, name) for leaf in leaves))
        return type(first)(**fields)

    return tf.nest.map_structure(apply, *structures)


def is_dense(spec: Any) -> bool:
    """Return whether all leaves are tensors of numbers whose shapes are known except for the samples."""
    return all(
        isinstance(leaf, tf.TensorSpec)
        and bool(leaf.shape.rank)
        and leaf.shape[1:].is_fully_defined()
        and leaf.dtype not in (tf.string, tf.variant, tf.resource)
        for leaf in tf.nest.flatten(spec)
    )
