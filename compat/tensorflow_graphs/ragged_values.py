"""Values of ragged tensors in a step that is partitioned: what depends on their places is computed by one operation.

TensorFlow computes these from masks over padded samples, or from positions in all values; a replica has its own values only.
"""

import inspect
from typing import Any

import tensorflow as tf

from ..patches import provide
from ..thread_context import tracing
from .gradients import OWN_GRADIENTS
from .named_calls import call_as_one

SAMPLE_NUMBERS, UNPADDED = "SampleNumbers", "UnpaddedValues"


def _find_sample_numbers(splits: tf.Tensor) -> list[tf.Tensor]:
    """Return for each value the number of the sample that it belongs to."""
    places = tf.range(splits[-1])
    found = tf.raw_ops.UpperBound(
        sorted_inputs=splits[tf.newaxis, 1:], values=places[tf.newaxis], out_type=splits.dtype
    )
    return [found[0]]


def _find_unpadded(padded: tf.Tensor, splits: tf.Tensor) -> list[tf.Tensor]:
    """Return the values in a padded tensor; those that it has not, because it is too short, are 0."""
    (samples,) = _find_sample_numbers(splits)
    places = tf.range(splits[-1]) - tf.gather(splits, samples)
    count, length, *rest = tf.unstack(tf.shape(padded, splits.dtype), padded.shape.rank)
    flat = tf.reshape(padded, tf.stack([count * length, *rest]))
    found = tf.gather(flat, samples * length + tf.minimum(places, length - 1))
    within = tf.reshape(places < length, [-1, *[1] * (found.shape.rank - 1)])
    return [tf.where(within, found, tf.zeros([], found.dtype))]


def number_samples(splits: tf.Tensor) -> tf.Tensor:
    """Return for each ragged value the number of its sample, from the offsets."""
    specs = [tf.TensorSpec([None], splits.dtype)]
    (found,) = call_as_one(SAMPLE_NUMBERS, None, _find_sample_numbers, [splits], specs)
    return tf.ensure_shape(found, [None]) if found.shape.rank is None else found


def _number_samples(original: Any) -> Any:
    def row_splits_to_segment_ids(splits: Any, name: Any = None, out_type: Any = None) -> Any:
        """As TensorFlow's, for which `ragged.value_rowids()` and sums over a ragged axis call this."""
        if not (tracing.partitions and tf.is_symbolic_tensor(splits)):
            return original(splits, name, out_type)
        found = number_samples(splits)
        return found if out_type is None else tf.cast(found, out_type)

    return row_splits_to_segment_ids


provide("segment_id_ops.row_splits_to_segment_ids", _number_samples)


def _look_up_each(original: Any) -> Any:
    """Let a sum of embeddings look up each entry, and not the different ones of the batch, which no replica knows."""

    def embedding_lookup_sparse_impl(*args: Any, **kwargs: Any) -> Any:
        if not tracing.partitions:
            return original(*args, **kwargs)
        given = inspect.signature(original).bind(*args, **kwargs)
        given.arguments["allow_fast_lookup"] = True
        return original(*given.args, **given.kwargs)

    return embedding_lookup_sparse_impl


provide("embedding_ops.embedding_lookup_sparse_impl", _look_up_each)


@tf.custom_gradient
def take_values(padded: tf.Tensor, splits: tf.Tensor) -> Any:
    """Return the ragged values with these offsets in a padded tensor; those that it has not are 0."""
    specs = [
        tf.TensorSpec([None, None, *padded.shape[2:]], padded.dtype),
        tf.TensorSpec([None], splits.dtype),
    ]
    (found,) = call_as_one(UNPADDED, None, _find_unpadded, [padded, splits], specs)

    def gradient(given: tf.Tensor) -> Any:
        return _pad(given, splits, tf.shape(padded, splits.dtype)[1]), None

    return found, gradient


def _pad(values: tf.Tensor, splits: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.RaggedTensorToTensor(
        shape=tf.stack([-1, length, *[-1] * (values.shape.rank - 1)]),
        values=values,
        default_value=tf.zeros([], values.dtype),
        row_partition_tensors=[splits],
        row_partition_types=["ROW_SPLITS"],
    )


def _differentiate_padding(attributes: Any, inputs: Any, gradient: Any) -> list[Any] | None:
    """Return the gradients of a padded tensor, whose places TensorFlow would look up; None: by TensorFlow.

    It must have all samples, and whole values, and padding that is a constant.
    """
    if {*attributes[attributes.index("row_partition_types") + 1]} != {b"ROW_SPLITS"}:
        return None
    shape, values, default, *splits = inputs
    asked = tf.get_static_value(shape, partial=True)
    if asked is None or tf.get_static_value(default) is None or values.shape.rank is None:
        return None
    axes = range(1, 1 + len(splits))
    extents = [-1, *[None for _ in axes], *values.shape[1:]]
    alike = asked.ndim == 0 or all(
        each == -1 or (number and each == extents[number]) or number in axes
        for number, each in enumerate(asked)
    )
    if not alike:
        return None
    found = tf.ensure_shape(gradient, [None, *extents[1:]])
    for each in splits:
        found = take_values(found, each)
    return [None, found, None, *[None for _ in splits]]


OWN_GRADIENTS["RaggedTensorToTensor"] = _differentiate_padding
