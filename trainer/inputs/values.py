"""Checks the values of targets and weights: class numbers without an output of the model, weights that are not finite."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .batch import named_leaves, unpack

_FAILED = re.compile(r"assertion failed: \[(`.+?\.)\] \[([^\]]+)\](?: \[([^\]]+)\])?")
_NUMBER = "{}"  # in a sentence, the placeholder of the value


class InvalidValueError(ValueError):
    """A label or a weight is invalid; the message is a sentence about the argument."""


class LabelRule(NamedTuple):
    """The class numbers that a loss accepts at one path of the targets: those below `classes`, and `ignored`."""

    path: tuple[Any, ...]
    classes: int
    ignored: int | None

    @property
    def place(self) -> str:
        """The path in messages, such as `y['color']`."""
        return "".join(["y", *(f"[{key!r}]" for key in self.path)])

    def within(self, low: Any, high: Any) -> Any:
        """Whether the smallest and the largest class number are valid; bools or tensors."""
        return (low > -1) & (high < self.classes)


def label_sentence(place: str, label: Any, classes: int) -> str:
    """The sentence for an invalid label."""
    return (
        f"`{place}` holds the label {label}, but the model has scores for {classes} classes: give class numbers from 0 to "
        f"{classes - 1}, or give the model more outputs."
    )


def _weight_sentence(place: str, value: Any) -> str:
    return f"`{place}` holds {value}: give finite numbers, 0 for samples that must not count."


def holds_text(spec: Any) -> bool:
    """Whether a nest of tensors or their specs contains strings."""
    return any(getattr(part, "dtype", None) == tf.string for part in tf.nest.flatten(spec))


def at(path: tuple[Any, ...], structure: Any) -> Any:
    """The part of a nest at this path, or its only part; None where there is none."""
    parts = tf.nest.flatten(structure)
    if len(parts) == 1:
        return parts[0]
    for key in path:
        try:
            structure = structure[key]
        except (LookupError, TypeError):
            return None
    return None if tf.nest.is_nested(structure) else structure


def is_memory_mapped(leaf: Any) -> bool:
    """Whether the samples of an array are in a file, as those of an `np.memmap` or a view of one."""
    while isinstance(leaf, np.ndarray):
        if isinstance(leaf, np.memmap):
            return True
        leaf = leaf.base
    return False


def check_finite(sample_weight: Any) -> None:
    """Rejects NaN and infinity in arrays in memory; one pass, the sum of an array, shows whether it has any."""
    for place, leaf in named_leaves("sample_weight", sample_weight):
        if not _is_dense(leaf) or not tf.as_dtype(leaf.dtype).is_floating or is_memory_mapped(leaf):
            continue
        with np.errstate(all="ignore"):
            array = np.asarray(leaf)
            bad = np.empty(0) if np.isfinite(array.sum()) else array[~np.isfinite(array)]
        if bad.size:
            raise InvalidValueError(_weight_sentence(place, bad[0]))


def check_labels(y: Any, rules: tuple[LabelRule, ...]) -> None:
    """Rejects labels in arrays in memory that break a rule.

    Arrays are checked once, batches of Python code by the thread that makes them, and batches of a `tf.data` pipeline
    on the host when they are drawn.
    """
    for rule in rules:
        labels = at(rule.path, y)
        if not _is_dense(labels) or is_memory_mapped(labels):
            continue
        array = np.asarray(labels)
        low, high = array.min(), array.max()
        if rule.ignored is not None and not rule.within(low, high):
            array = array[array != rule.ignored]
            low, high = (array.min(), array.max()) if array.size else (0, 0)
        if not rule.within(low, high):
            raise InvalidValueError(label_sentence(rule.place, high if low > -1 else low, rule.classes))


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | tf.Tensor) and tf.as_dtype(leaf.dtype) not in (tf.string, tf.bool)


def assert_values(batch: Any, rules: tuple[LabelRule, ...]) -> list[Any]:
    """Operations that fail where a batch has weights that are not finite, or invalid labels; eagerly it fails itself."""
    _, y, sample_weight = unpack(batch)
    if tf.executing_eagerly():
        check_finite(sample_weight)
        check_labels(y, rules)
        return []
    checks = []
    with tf.device("CPU:0"):
        for place, weights in named_leaves("sample_weight", sample_weight):
            if _is_dense(weights) and weights.dtype.is_floating:
                finite = tf.reduce_all(tf.math.is_finite(weights))
                checks.append(tf.debugging.Assert(finite, [_weight_sentence(place, "NaN or infinity"), 0]))
        for rule in rules:
            labels = at(rule.path, y)
            if not _is_dense(labels):
                continue
            if rule.ignored is not None:
                labels = tf.where(labels == rule.ignored, tf.zeros_like(labels), labels)
            # Without a label, the zero is the minimum and the maximum.
            labels = tf.concat([tf.reshape(labels, [-1]), tf.zeros([1], labels.dtype)], 0)
            low, high = tf.reduce_min(labels), tf.reduce_max(labels)
            sentence = label_sentence(rule.place, _NUMBER, rule.classes)
            checks.append(tf.debugging.Assert(rule.within(low, high), [sentence, low, high]))
    return checks


def sentence_in(error: Exception) -> str | None:
    """The sentence of a failed check; None for another error."""
    if isinstance(error, InvalidValueError):
        return str(error)
    found = _FAILED.search(str(error))
    if found is None:
        return None
    low, high = found[2], found[3] or found[2]
    return found[1].replace(_NUMBER, low if float(low) <= -1 else high)
