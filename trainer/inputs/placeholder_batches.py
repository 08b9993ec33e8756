"""Batches that are made up, for trials that must not touch the user's data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

_ANY_SIZE = 4  # of a dimension that is left open


def made_up(spec: Any, rows: int) -> tf.Tensor:
    """Rows that are all different; zeros for integers (a class, a word), since not all numbers may be allowed.

    Args:
        spec: `tf.TensorSpec` of a batch.
        rows: int.

    Raises:
        TypeError: for any other kind of spec.
    """
    if not isinstance(spec, tf.TensorSpec):
        raise TypeError(f"no rows can be made up for {spec}")
    shape = [rows, *(_ANY_SIZE if size is None else size for size in spec.shape[1:])]
    if spec.dtype == tf.string:
        return tf.fill(shape, "")
    if not spec.dtype.is_floating:
        return tf.zeros(shape, spec.dtype)
    return tf.cast(np.random.default_rng(0).uniform(0.5, 1.5, shape), spec.dtype)


def made_up_dataset(element_spec: Any, rows: int) -> tf.data.Dataset:
    """One batch of made-up rows, without end; its elements have the given spec.

    Args:
        element_spec: nest of `tf.TensorSpec`; the row dimension is `rows` or None.
        rows: int.
    """
    known = all(spec.shape[0] is not None for spec in tf.nest.flatten(element_spec))
    batch = tf.nest.map_structure(lambda spec: made_up(spec, rows), element_spec)
    whole = tf.data.Dataset.from_tensor_slices(batch).batch(rows, drop_remainder=known)
    return whole.cache().repeat()
