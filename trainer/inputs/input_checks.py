"""Checks of inputs before the first step; the messages name the argument, the value and the fix."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ...distribute.arguments import show
from .batch import all_leaves, is_extension, name_arrays, name_leaves, sample_count, unpack


def same_samples(arrays: Any, sharing: Sharing | None = None) -> int:
    """Return the number of samples of every array in a batch; of the first, where `sharing` allows different numbers.

    Reject different numbers, a batch without an array, and arrays without samples or without a dimension of samples.
    """
    sizes = []
    for path, leaf in all_leaves(arrays):
        if leaf is None:
            continue
        if not is_extension(leaf) and tf.TensorShape(leaf.shape).rank == 0:
            raise ValueError(
                f"{path} ({leaf!r}) is a scalar; the first dimension of every array is its samples."
            )
        sizes.append((path, int(sample_count(leaf))))
    if not sizes:
        raise ValueError(
            "x is None or an empty structure, so there is nothing to read: pass at least one array."
        )
    listing = ", ".join(f"{name}: {size}" for name, size in sizes)
    if any(size == 0 for _, size in sizes):
        raise ValueError(f"The arrays have no samples ({listing}): pass at least one sample.")
    differ = len({size for _, size in sizes}) > 1
    if differ and (sharing is None or not sharing.allows(arrays, sizes)):
        raise ValueError(f"All arrays must have the same number of samples. Received: {listing}.")
    return sizes[0][1]


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Decides whether the arrays of a batch may have different numbers of samples.

    They may in a custom step. On one replica they may in the inputs of a model (the nodes and the edges of graphs); but
    where all inputs have the same number, targets with a different one are a mistake.
    """

    custom_step: bool
    """Whether a custom step gets the batch."""
    replicas: int
    """The replicas that share the samples, micro-batches of a pipeline included."""

    def allows(self, batch: Any, sizes: list[tuple[str, int]]) -> bool:
        """Return whether the arrays of a batch (or its spec) may have these numbers of samples, by their paths."""
        if self.custom_step:
            return True
        x = {name for name, _ in name_leaves("x", unpack(batch)[0])}
        return self.replicas == 1 and len({size for name, size in sizes if name in x}) > 1


def check_samples(batch: Any, replicas: int, inputs_alone: bool = False) -> list[Any]:
    """Reject a batch whose arrays differ from its inputs in the number of samples; in a graph, where it is unknown before.

    On one replica, fewer targets may be intended, as in Keras: a loss can broadcast a single one. There the inputs may have
    different numbers of samples, and targets that of any input.

    It raises a ValueError where the numbers are known. Otherwise it returns operations that raise a
    `tf.errors.InvalidArgumentError` when the step runs: it must start after them, or the model might fail first.

    Args:
        batch: for a step of Keras: `(x, y)` or `(x, y, sample_weight)`.
        replicas: the number of replicas that share the samples.
        inputs_alone: whether targets and weights are ignored.
    """
    x, *others = unpack(batch)
    inputs, targets = name_arrays((x,)), [] if inputs_alone else name_arrays((None, *others))
    if not inputs:
        return []
    one_for_each = "`{}` must have as many samples as `{}`: pass one for each sample of the inputs. Received"
    if replicas > 1:
        shared = (
            f"`{{}}` must have as many samples as `{{}}`, because a batch is divided into {replicas} parts: train on "
            "one replica, or use such batches in a custom `train_step`. Received"
        )
        return _check_equal(inputs, shared) + _check_equal([("x", inputs[0][1]), *targets], one_for_each)
    counts = [sample_count(leaf) for _, leaf in inputs]
    known = all(isinstance(count, int) for count in counts)
    most = max(counts) if known else functools.reduce(tf.maximum, counts)
    given = [(path, sample_count(leaf)) for path, leaf in targets]
    return [op for path, n in given for op in _check(n <= most, one_for_each, path, "x", n, most)]


def check_equal_samples(batch: Any) -> list[Any]:
    """Do as `check_samples` where workers read their own samples: arrays would differ in their shares of the batch."""
    sentence = (
        "`{}` must have as many samples as `{}`, because each worker reads its own: pass the whole batches on every "
        "worker, for instance as a tf.data.Dataset. Received"
    )
    return _check_equal(name_arrays(batch), sentence)


def check_combined_samples(arrays: list[tuple[str, Any]]) -> list[Any]:
    """Do as `check_samples` for arrays, with their paths, whose samples a custom step combines one by one."""
    sentence = (
        "`{}` must have as many samples as `{}`, because the step combines them sample by sample on several replicas: "
        "repeat a single sample for each of the others. Received"
    )
    return _check_equal(arrays, sentence)


def check_combined_values(arrays: list[tuple[str, Any, int]]) -> list[Any]:
    """Return checks that samples have as many values in all these ragged or sparse arrays, which a step combines.

    Each has its path, and the number of its ragged dimensions that must be equal.
    """
    (name, first, depth), *others = arrays
    checks, expected = [], _count_values(first, depth)
    for path, leaf, depth in others:
        sentence = f"Each sample of `{path}` must have as many values as in `{name}`, because the step combines them."
        pairs = zip(_count_values(leaf, depth), expected)
        equal = [tf.reduce_all(_compare(one, another)) for one, another in pairs]
        checks.append(tf.debugging.Assert(tf.reduce_all(equal), [sentence]))
    return checks


def _compare(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Compare lengths; of inner dimensions there are unequally many where outer ones differ."""
    return tf.raw_ops.Equal(x=one, y=other, incompatible_shape_error=False)


def _count_values(leaf: Any, depth: int) -> list[tf.Tensor]:
    """Return the number of values of each sample, int64 `(samples,)`, and of each value of an outer ragged dimension."""
    if isinstance(leaf, tf.RaggedTensor):
        return [tf.cast(each, tf.int64) for each in leaf.nested_row_lengths()[:depth]]
    samples = tf.cast(leaf.dense_shape[0], tf.int32)
    numbers = tf.cast(leaf.indices[:, 0], tf.int32)
    return [tf.math.bincount(numbers, minlength=samples, maxlength=samples, dtype=tf.int64)]


def _check_equal(arrays: list[tuple[str, Any]], sentence: str) -> list[Any]:
    (name, first), *others = arrays
    checks, expected = [], sample_count(first)
    for path, leaf in others:
        given = sample_count(leaf)
        checks += _check(given == expected, sentence, path, name, given, expected)
    return checks


def _check(fits: Any, sentence: str, path: str, other: str, given: Any, expected: Any) -> list[Any]:
    sentence = sentence.format(path, other)
    if isinstance(fits, bool):
        if not fits:
            raise ValueError(f"{sentence}: {given} samples in `{path}`, {expected} in `{other}`.")
        return []
    check = tf.debugging.Assert(fits, [f"{sentence} samples in `{path}` and in `{other}`:", given, expected])
    return [] if check is None else [check]


@contextlib.contextmanager
def name_arguments(argument: str = "", **names: str) -> Iterator[None]:
    """Let errors of the block name the user's arguments, by the prefix `argument` and `names` replaced in the message."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if error.args and isinstance(error.args[0], str):
            text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), error.args[0])
            if argument and not text.startswith(f"`{argument}`"):
                text = f"`{argument}`: {text}"
            error.args = (text,)
        raise


def check_batched(element_spec: Any, parts: int, sharing: Sharing) -> None:
    """Reject a dataset of single samples, and one whose arrays cannot have valid numbers of samples, by its spec.

    `parts` elements make one batch. A scalar next to arrays with an open number of samples is a value of the whole batch.
    """
    shapes = [(path, getattr(leaf, "shape", None)) for path, leaf in all_leaves(element_spec)]
    ranked = [(path, shape) for path, shape in shapes if shape is not None and shape.rank is not None]
    sizes = [(path, shape[0]) for path, shape in ranked if shape.rank]
    known = [(path, size) for path, size in sizes if size is not None]
    if len(sizes) < len(ranked) and (len(known) == len(sizes) or parts > 1):
        raise ValueError(
            "x is a dataset of single samples; batch it first: dataset.batch(global_batch_size). "
            f"Received elements: {show(element_spec)}"
        )
    if len({size for _, size in known}) > 1 and not sharing.allows(element_spec, known):
        raise ValueError(
            "The arrays of the dataset's elements have different numbers of samples "
            f"({sorted({size for _, size in known})}); if the elements are single samples, batch them first: "
            "dataset.batch(global_batch_size); else use them in a custom `train_step`. "
            f"Received elements: {show(element_spec)}"
        )
