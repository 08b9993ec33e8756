"""`validation_split`: the last rows of the arrays are kept for validation, as in Keras."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import tensorflow as tf

from . import checks
from .convert import standard_arrays
from .make_source import kind_of
from .rows import slice_rows


def split_for_validation(
    x: Any, y: Any = None, sample_weight: Any = None, *, validation_split: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Cuts arrays in two, before any shuffling.

    Args:
        x: arrays.
        y: arrays or None.
        sample_weight: arrays or None.
        validation_split: between 0 and 1; the part of the rows, at the end, that is for validation.

    Returns:
        `(x, y, sample_weight)` for training and for validation. NumPy arrays are views: memory-mapped ones stay in files.

    Raises:
        ValueError, TypeError: x is no array, the share is none, or one of the two parts would have no row.
    """
    if isinstance(validation_split, bool) or not isinstance(validation_split, numbers.Real):
        raise TypeError(f"validation_split ({validation_split!r}) must be a number between 0 and 1.")
    if not 0 < validation_split < 1:
        raise ValueError(f"validation_split ({validation_split}) must be between 0 and 1, both excluded.")
    kind = kind_of(x)
    if kind != "array":
        raise ValueError(
            f"validation_split ({validation_split}) needs arrays, but x is a {kind}, of which the length or the end "
            "cannot be had in advance; give validation_data."
        )
    arrays = standard_arrays(x, y, sample_weight)
    rows = checks.same_rows(arrays)
    cut = math.floor(rows * (1.0 - validation_split))
    if cut in (0, rows):
        raise ValueError(
            f"validation_split ({validation_split}) of {rows} rows leaves {cut} rows for training and {rows - cut} for "
            "validation; give more rows or another share."
        )
    return rows_of(arrays, 0, cut), rows_of(arrays, cut, rows)


def rows_of(arrays: tuple[Any, ...], start: int, stop: int) -> tuple[Any, Any, Any]:
    """The rows from `start` to `stop` of `(x, y, sample_weight)`, as `standard_arrays` gives them."""

    def cut(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, np.ndarray):
            return None if leaf is None else leaf[start:stop]
        return slice_rows(leaf, start, stop)

    x, y, sample_weight = tf.nest.map_structure(cut, arrays)
    return x, y, sample_weight
