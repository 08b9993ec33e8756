"""Values of ragged arrays: which sample each belongs to, and padding.

The values of a replica are those of its samples, and offsets say where those of each sample begin.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.ragged_values import SAMPLE_NUMBERS, UNPADDED
from ..conversions import extent_of, find_start
from ..labels import REPLICATED, Label, Ragged, label_offsets, label_places, label_sharded, sizes
from ..sizes.bounds import bound_by
from ..sizes.positions import OF_SAMPLES
from ..sizes.size import Extent, Length, Size, count_entries
from ..sizes.size_arrays import Unknown
from .call import Call, ReplicaCall, Ruling, Shapes, View, require
from .row import add_rows
from .value_places import entries_of


def _values_of(offsets: Label) -> Label:
    """Return the label of the values that have these offsets."""
    return label_sharded(0, chosen=require(offsets.chosen.values if offsets.is_offsets else None))


def _label_numbers(view: View) -> Ruling:
    """Label the numbers of samples; those of other values that have these are positions."""
    values, owner = _values_of(view.labels[0]), view.labels[0].chosen.of
    return [None], [values if owner is None else label_places(owner, values.chosen)]


def _copy_numbers(call: ReplicaCall, given: list[Any]) -> list[Any]:
    """Return the numbers of samples in the batch."""
    (found,) = call.make(given)
    divided = call.made[0][0].is_sharded
    samples = extent_of(given[0], 0) - 1
    return [found + find_start(samples, found.dtype, call.places[0]) if divided else found]


add_rows(
    SAMPLE_NUMBERS,
    label=_label_numbers,
    shape=lambda call: [[_values_of(call.values[0].label).chosen.values]],
    progression=lambda call, shape: None if getattr(call.values[0].label.chosen, "of", None) else OF_SAMPLES,
    bounds=bound_by(0, 2**31 - 1),
    copy=_copy_numbers,
)


def _label_unpadded(view: View) -> Ruling:
    padded, offsets = view.labels
    values, entries = _values_of(offsets), entries_of(offsets)
    return [require(padded if padded == entries else None), None], [values]


add_rows(
    UNPADDED,
    label=_label_unpadded,
    shape=lambda call: [[_values_of(call.values[1].label).chosen.values, *call.shape()[2:]]],
)


def _find_asked(call: Call) -> list[Extent]:
    """Return the shape that a padded tensor is to have, whose ragged axes are those of its offsets; -1: as needed."""
    kinds = call.op.get_attr("row_partition_types")
    found = require(call.constant(0) if {*kinds} == {b"ROW_SPLITS"} else None)
    return found.tolist() if found.ndim else [-1] * (len(kinds) + call.rank(1))


def _find_asked_of_one_axis(call: Call) -> list[Extent]:
    """Return it for one ragged axis."""
    return require(_find_asked(call) if len(call.values) == 4 else None)


def _find_padded(call: Call) -> Shapes:
    asked, samples = _find_asked_of_one_axis(call), call.shape(3)[0]
    longest = Size.of(Length()) if asked[1] in (-1, None) else asked[1]  # the same everywhere
    own = [None if samples is None else samples - 1, longest, *call.shape(1)[1:]]
    return [[mine if each == -1 or n == 1 else each for n, (mine, each) in enumerate(zip(own, asked))]]


def _label_padded(view: View) -> Ruling:
    (samples, longest, *_), values = _find_asked_of_one_axis(view), _values_of(view.labels[3])
    made = entries_of(view.labels[3])
    fits = view.labels[1] == values and longest != -1
    fits &= samples == -1 or (samples == require(view.shape(3)[0]) - 1 and not made.chosen)
    asked = REPLICATED if made.chosen else sizes(0)
    return [require(asked if fits else None), None, REPLICATED, None], [made]


def _pad_to_longest(call: Call) -> Callable[..., list[tf.Tensor]] | None:
    """Return the padding along one ragged axis after the other, the inner first, to the longest length of the batch."""
    asked, axes = _find_asked(call), len(call.values) - 3
    if not all(value.label.is_offsets for value in call.values[3:]) or (axes == 1 and asked[1] != -1):
        return None

    def pad(shape: tf.Tensor, values: tf.Tensor, default: tf.Tensor, *offsets: tf.Tensor) -> list[tf.Tensor]:
        given = tf.unstack(shape, axes + len(values.shape)) if shape.shape.rank else None
        for axis, splits in reversed([*enumerate(offsets, 1)]):
            lengths = splits[1:] - splits[:-1]  # there may be none
            longest = tf.maximum(tf.reduce_max(lengths), 0) if asked[axis] == -1 else asked[axis]
            first = given[0] if given and axis == 1 else -1
            rest = given[axes + 1 :] if given and axis == axes else [-1] * (len(values.shape) - 1)
            extents = [tf.cast(each, shape.dtype) for each in (first, longest, *rest)]
            values = tf.raw_ops.RaggedTensorToTensor(
                shape=tf.stack(extents),
                values=values,
                default_value=default,
                row_partition_tensors=[splits],
                row_partition_types=["ROW_SPLITS"],
            )
        return [values]

    return pad


add_rows("RaggedTensorToTensor", label=_label_padded, shape=_find_padded, rewrite=_pad_to_longest)


def _find_ranges(call: Call) -> Shapes:
    samples = next((value.shape[0] for value in call.values if value.shape), None)
    return [[require(samples) + 1], [count_entries(samples)]]


def _label_ranges(view: View) -> Ruling:
    """Label ranges of each sample, of numbers or of positions of ragged values."""
    values = Ragged(view.out_shape(1)[0], require(view.out_shape()[0]) - 1)
    first, last, step = view.labels
    if first.is_places and (first, step) == (last, REPLICATED) and first.chosen.of is None:
        return [None] * 3, [label_offsets(values), label_places(first.chosen.values, values)]
    alike = [label == REPLICATED and value.shape == [] for label, value in zip(view.labels, view.values)]
    if all(alike) or not all(same or label == label_sharded(0) for same, label in zip(alike, view.labels)):
        raise Unknown
    return [None] * 3, [label_offsets(values), label_sharded(0, chosen=values)]


add_rows("RaggedRange", label=_label_ranges, shape=_find_ranges)
