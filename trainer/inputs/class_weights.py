"""`class_weight`: the weights of the targets' classes, added to each batch as its `sample_weight`."""

import dataclasses
import numbers
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ...distribute.arguments import number, show
from .batch import is_standard, unpack
from .sources.readers import map_optional


class ClassWeights(NamedTuple):
    """The classes that have a weight, in order, and their weights; every other class has weight 1."""

    classes: tuple[int, ...]
    weights: tuple[float, ...]


def class_weights(value: Any) -> ClassWeights | None:
    """Return the classes and weights of `class_weight`, a dict from whole numbers to finite ones."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"class_weight ({show(value)}) must be a dict such as {{0: 1.0, 1: 2.5}}.")
    if any(isinstance(weight, dict) for weight in value.values()):
        raise TypeError(
            f"class_weight ({show(value)}) has a dict for each output, but is for models with one output: "
            "pass a sample_weight for each output."
        )
    pairs = []
    for key, weight in value.items():
        if isinstance(key, bool) or not isinstance(key, numbers.Real) or float(key) % 1 != 0:
            raise TypeError(f"class_weight has the key {key!r}: keys must be the class numbers of y, as int.")
        pairs.append((int(float(key)), float(number(f"class_weight[{key}]", weight))))
    pairs.sort()
    return ClassWeights(tuple(key for key, _ in pairs), tuple(weight for _, weight in pairs))


def check_class_weight(batch: Any, given: Any) -> None:
    """Reject the spec of a batch that cannot be weighted by `given`, the `class_weight`."""
    _, y, sample_weight = unpack(batch)
    problem = None
    if not is_standard(batch):
        problem = f"needs batches (x, y), but each is a tuple of {len(batch)}: weight them in your step."
    elif sample_weight is not None:
        problem = "and sample_weight were both passed: pass the product of the two as sample_weight."
    elif y is None:
        problem = "needs targets: pass y."
    elif tf.nest.is_nested(y):
        kind = f"y is a {type(y).__name__} of several: pass a sample_weight for each output."
        problem = f"is for models with one output, but {kind}"
    elif tf.as_dtype(y.dtype) == tf.string:
        problem = "needs class numbers in y, but y contains strings: encode them first."
    if problem is not None:
        raise ValueError(f"class_weight ({given}) {problem}")


def weight_spec(spec: Any) -> Any:
    """Return the spec of a batch `(x, y)` with the weights of its samples' classes."""
    x, y, _ = unpack(spec)
    shape = y.shape
    if shape.rank is not None and shape.rank > 1:
        shape = shape[:-1]
    return (x, y, tf.TensorSpec(shape, keras.config.floatx()))


@dataclasses.dataclass(frozen=True)
class WeightedReader:
    """Reads the batches `(x, y)` of `reader` with the weights of their samples' classes as `sample_weight`."""

    reader: Any
    open_ended: bool
    weights: ClassWeights

    def __call__(self, inputs: Any, i: Any) -> Any:
        """Return the whole batch, or an Optional of it where the input is open-ended."""
        batch = self.reader(inputs, i)
        if self.open_ended:
            return map_optional(self._weigh, batch, weight_spec(batch.element_spec))
        return self._weigh(batch)

    def read(self, *place: Any) -> Any:
        """Return the samples of one replica, see `ArrayReader.read`."""
        return self._weigh(self.reader.read(*place))

    def _weigh(self, batch: Any) -> Any:
        x, y, _ = unpack(batch)
        return (x, y, weights_of_classes(y, self.weights))


def weights_of_classes(y: tf.Tensor, weights: ClassWeights) -> tf.Tensor:
    """Return the weight of each target's class: floatx `(batch,)` (`(batch, ...)` for targets with more dimensions).

    `y` are class numbers `(batch,)` or `(batch, 1)` of any number dtype, or scores or one-hot `(batch, ..., classes)`.
    """
    table = tf.constant(weights.weights, keras.config.floatx())
    numbers = _class_numbers(y)
    if not weights.classes:
        return tf.ones_like(numbers, table.dtype)
    match = tf.expand_dims(numbers, -1) == tf.constant(weights.classes, tf.int64)
    found = tf.gather(table, tf.argmax(match, axis=-1))
    return tf.where(tf.reduce_any(match, axis=-1), found, tf.ones_like(found))


def _class_numbers(y: tf.Tensor) -> tf.Tensor:
    def as_number(value: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.round(value) if value.dtype.is_floating else value, tf.int64)

    if y.shape.rank is None or y.shape.rank < 2:
        return as_number(y)
    if y.shape[-1] == 1:
        return as_number(tf.squeeze(y, -1))
    if y.shape[-1] is not None:
        return tf.argmax(tf.cast(y, tf.int32) if y.dtype == tf.bool else y, axis=-1)
    return tf.cond(
        tf.shape(y)[-1] == 1,
        lambda: as_number(tf.gather(y, 0, axis=-1)),
        lambda: tf.argmax(y, axis=-1, output_type=tf.int64),
    )
