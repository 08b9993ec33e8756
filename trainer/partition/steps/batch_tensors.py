"""The tensors of a batch: a ragged array has values and offsets, a sparse one places, values and shape."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ..composite_arrays import RaggedArray, SparseArray


def tensors_of(structure: Any) -> list[Any]:
    """Return the tensors of a nest, or their specs."""
    found = tf.nest.flatten(structure, expand_composites=True)
    return [leaf for leaf in found if leaf is not None]


def with_tensors(spec: Any, tensors: Iterable[Any]) -> Any:
    """Return the batch of a spec that has these tensors."""
    rest = iter(tensors)

    def assemble(leaf: Any) -> Any:
        own = [next(rest) for _ in tensors_of(leaf)]
        return None if leaf is None else tf.nest.pack_sequence_as(leaf, own, expand_composites=True)

    return tf.nest.map_structure(assemble, spec)


def find_composite(spec: Any) -> list[RaggedArray | SparseArray]:
    """Return the arrays that have several tensors, by their numbers."""
    found, number = list[RaggedArray | SparseArray](), 0
    for leaf in tf.nest.flatten(spec):
        if isinstance(leaf, tf.RaggedTensorSpec) and leaf.ragged_rank:
            found.append(RaggedArray(tuple(range(number, number + 1 + leaf.ragged_rank))))
        elif isinstance(leaf, tf.SparseTensorSpec):
            found.append(SparseArray((number, number + 1, number + 2), tuple(leaf.shape[1:])))
        number += len(tensors_of(leaf))
    return found


def find_depths(spec: Any) -> list[int]:
    """Return for each tensor of an array in how many ragged dimensions its entries lie; of a sparse one, one."""
    if not isinstance(spec, tf.RaggedTensorSpec):
        return [1] * len(tensors_of(spec))
    return [spec.ragged_rank, *range(spec.ragged_rank)]


def describe_unsupported(path: str, spec: Any) -> str | None:
    """Return why a step with this array is not partitioned; None: it can be."""
    if isinstance(spec, tf.SparseTensorSpec):
        return None if spec.shape.rank else f"the rank of the sparse array `{path}` is not known"
    if isinstance(spec, tf.RaggedTensorSpec):
        return None if spec.shape.rank else f"the rank of the ragged array `{path}` is not known"
    if not isinstance(spec, tf.TensorSpec | None):
        return f"inputs that are not tensors are not partitioned, so make `{path}` one"
    return None
