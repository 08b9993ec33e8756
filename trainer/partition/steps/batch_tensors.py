"""The tensors of a batch: a ragged array has its values and its offsets, a sparse one its places, values and shape."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ..composite_inputs import RaggedInput, SparseInput


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


def find_composite(spec: Any) -> list[RaggedInput | SparseInput]:
    """Return the arrays that have several tensors, by their numbers."""
    found, number = list[RaggedInput | SparseInput](), 0
    for leaf in tf.nest.flatten(spec):
        if isinstance(leaf, tf.RaggedTensorSpec):
            found.append(RaggedInput((number, number + 1)))
        elif isinstance(leaf, tf.SparseTensorSpec):
            found.append(SparseInput((number, number + 1, number + 2), tuple(leaf.shape[1:])))
        number += len(tensors_of(leaf))
    return found


def describe_unsupported(path: str, spec: Any) -> str | None:
    """Return why a step with this array is not partitioned; None: it can be."""
    if isinstance(spec, tf.SparseTensorSpec):
        return None if spec.shape.rank else f"the rank of the sparse array `{path}` is not known"
    if isinstance(spec, tf.RaggedTensorSpec):
        if spec.ragged_rank == 1 and spec.shape.rank is not None:
            return None
        return f"only inputs with one ragged dimension are partitioned, and `{path}` has {spec.ragged_rank}"
    if not isinstance(spec, tf.TensorSpec | None):
        return f"inputs that are not tensors are not partitioned, so make `{path}` one"
    return None
