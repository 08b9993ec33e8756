"""The results of a step: their tensors, and which of them a replica returns."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ....compat.wrong_use import WrongUse
from ....distribute.step_context import StepContext, this_step
from ...inputs.batch import sample_count
from ..labels import LOGS, PARTIAL_SUM, Label
from .batch_tensors import tensors_of


def numbers_in(results: Any) -> list[Any]:
    """Return the tensors among the results of a step, also ragged ones; None and text are passed through unchanged."""
    leaves = [*filter(_is_number, tf.nest.flatten(results))]
    if any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
        raise WrongUse(
            "A step returns a sparse tensor, and replicas return no parts of one: return `tf.sparse.to_dense` of it."
        )
    return [leaf if isinstance(leaf, tf.RaggedTensor) else tf.convert_to_tensor(leaf) for leaf in leaves]


def with_numbers(results: Any, numbers: Sequence[Any]) -> Any:
    """Return the results of a step with other tensors."""
    rest = iter(numbers)
    return tf.nest.map_structure(lambda leaf: next(rest) if _is_number(leaf) else leaf, results)


def _is_number(leaf: Any) -> bool:
    return leaf is not None and not isinstance(leaf, str | bytes)


def own_results(
    results: Any, tensors: Sequence[tf.Tensor], labels: Sequence[Label], exits: Label, first: bool
) -> Any:
    """Return the results of a step that a replica has computed as these tensors, with these labels.

    Those of LOGS and parts of sums are returned by all replicas, others without the borrowed sample of a replica that has no
    samples. Of the replicas with the same samples the `first` one returns them. Context: replica, in a step.
    """
    parts, found, step = iter(zip(tensors, labels)), list[Any](), this_step()
    for leaf in filter(_is_number, tf.nest.flatten(results)):
        (tensor, label), *offsets = (next(parts) for _ in tensors_of(leaf))
        if offsets:
            tensor = tf.RaggedTensor.from_nested_row_splits(tensor, [each for each, _ in offsets], False)
        by_all = exits == LOGS or label == PARTIAL_SUM or tensor.shape.rank == 0
        found.append(tensor if by_all else _own_samples(tensor, label, step, first))
    return with_numbers(results, found)


def _own_samples(tensor: Any, label: Label, step: StepContext, first: bool) -> Any:
    if label.is_sharded and step.returned is not None:
        start, count = step.returned
        return tensor[start : start + count]
    if not first:
        return tensor[:0]
    returned = step.alive if label.is_sharded else step.holds_first_sample
    return tensor if returned is True else tensor[: tf.where(returned, sample_count(tensor), 0)]
