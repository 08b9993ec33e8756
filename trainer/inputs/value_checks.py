"""Checks the values of targets and weights: class numbers without an output of the model, weights that are not finite."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .batch import is_memory_mapped, name_leaves, unpack

_FAILED = re.compile(r"assertion failed: \[(`.+?\.)\] \[([^\]]+)\] \[([^\]]+)\]")
_VALUE = "<value>"  # in a sentence, the place of the value
_LABEL = (
    "`{}` contains the label {}, but the model outputs scores for {} classes: use class numbers from 0 to {}, or add "
    "outputs to the model."
)


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


def holds_text(spec: Any) -> bool:
    """Return whether a nest of tensors or their specs contains strings."""
    return any(getattr(part, "dtype", None) == tf.string for part in tf.nest.flatten(spec))


def at(path: tuple[Any, ...], structure: Any) -> Any:
    """Return the part of a nest at this path, or its only part; None where there is none."""
    parts = tf.nest.flatten(structure)
    if len(parts) == 1:
        return parts[0]
    for key in path:
        try:
            structure = structure[key]
        except (LookupError, TypeError):
            return None
    return None if tf.nest.is_nested(structure) else structure


def check_values(sample_weight: Any = None, y: Any = None, rules: tuple[LabelRule, ...] = ()) -> None:
    """Reject NaN and infinity in weights, and labels that break a rule, in arrays in memory."""
    with tf.device("CPU:0"):
        for fits, sentence, *ends in _judge(sample_weight, y, rules):
            if not fits:
                raise InvalidValueError(_with_value(sentence, *(str(end.numpy()) for end in ends)))


def assert_values(batch: Any, rules: tuple[LabelRule, ...]) -> list[Any]:
    """Return operations that fail if a batch has non-finite weights or invalid labels; eagerly, fail at once."""
    _, y, sample_weight = unpack(batch)
    if tf.executing_eagerly():
        check_values(sample_weight, y, rules)
        return []
    with tf.device("CPU:0"):
        return [tf.debugging.Assert(fits, data) for fits, *data in _judge(sample_weight, y, rules)]


def _judge(sample_weight: Any, y: Any, rules: tuple[LabelRule, ...]) -> Iterator[tuple[Any, str, Any, Any]]:
    """Yield, for each array of weights and labels, whether it is valid, the sentence, and the extreme invalid values."""
    for place, weights in name_leaves("sample_weight", sample_weight):
        if _is_dense(weights) and tf.as_dtype(weights.dtype).is_floating:
            finite = tf.math.is_finite(weights)
            bad = tf.reduce_sum(tf.where(finite, tf.zeros_like(weights), weights))  # NaN or infinity
            sentence = f"`{place}` contains {_VALUE}: pass finite numbers, 0 for samples that must not count."
            yield tf.reduce_all(finite), sentence, bad, bad
    for rule in rules:
        labels = at(rule.path, y)
        if _is_dense(labels):
            dtype = tf.as_dtype(labels.dtype)
            wide = tf.float64 if dtype.is_floating else tf.int64
            if rule.ignored is not None and dtype.min <= rule.ignored <= dtype.max:
                ignored = tf.equal(labels, tf.cast(rule.ignored, dtype))
                labels = tf.where(ignored, tf.zeros([], dtype), labels)
            # Without a label, both are zero.
            low = tf.minimum(tf.cast(tf.reduce_min(labels), wide), 0)
            high = tf.maximum(tf.cast(tf.reduce_max(labels), wide), 0)
            sentence = _LABEL.format(rule.place, _VALUE, rule.classes, rule.classes - 1)
            yield (low > -1) & (high < rule.classes), sentence, low, high


def _is_dense(leaf: Any) -> bool:
    dense = isinstance(leaf, np.ndarray | tf.Tensor) and not is_memory_mapped(leaf)
    return dense and tf.as_dtype(leaf.dtype) not in (tf.string, tf.bool)


def _with_value(sentence: str, low: str, high: str) -> str:
    return sentence.replace(_VALUE, high if float(low) > -1 else low)


def sentence_in(error: Exception) -> str | None:
    """Return the sentence of a failed check; None for another error."""
    if isinstance(error, InvalidValueError):
        return str(error)
    found = _FAILED.search(str(error))
    return None if found is None else _with_value(found[1], found[2], found[3])
