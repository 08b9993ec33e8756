"""Batches that Python code makes: what counts as one, and whether it is like the ones before it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from . import checks
from .convert import host_arrays, is_array
from .rows import row_count, spec_without_rows


@contextlib.contextmanager
def noting_place(place: str) -> Iterator[None]:
    """Lets an error of the user's code pass as it is, with a note that says where in the input it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised by the input: {place} (counted from 0).")
        raise


def standard_batch(item: Any, kind: str, number: int, lists: bool = True) -> tuple[Any, ...]:
    """What a generator, PyDataset or DataLoader gave as `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Args:
        item: the object given: a tuple of these, or x alone as one array or a dict.
        kind: the kind of input, for messages.
        number: int; which batch of the epoch it is, from 0.
        lists: whether a list will do for the tuple.

    Returns:
        The tuple, with NumPy arrays and tensors as leaves, not yet cast.

    Raises:
        ValueError: if it is no such tuple, or its arrays differ in rows or have none.
        TypeError: if something in it is no array.
    """
    if isinstance(item, list) and lists:
        item = tuple(item)
    if isinstance(item, dict) or (is_array(item) and item is not None):
        item = (item,)
    if not isinstance(item, tuple) or not 1 <= len(item) <= 3:
        size = f" of length {len(item)}" if isinstance(item, tuple | list) else ""
        raise ValueError(
            f"Batch {number} of the {kind} is a {type(item).__name__}{size}; a batch must be a tuple "
            "(inputs,), (inputs, targets) or (inputs, targets, sample_weights)."
        )
    names = ("x", "y", "sample_weight")
    where = f"Batch {number} of the {kind} has a {{kind}} as {{place}}; give arrays."
    batch = tuple(host_arrays(name, _joined_numbers(part), where) for name, part in zip(names, item))
    while len(batch) > 1 and batch[-1] is None:
        batch = batch[:-1]
    try:
        checks.same_rows(batch)
    except ValueError as error:
        raise ValueError(f"Batch {number} of the {kind}: {error}") from None
    return batch


def _joined_numbers(part: Any) -> Any:
    """A list or tuple of Python numbers is one array of them."""
    if isinstance(part, list | tuple) and part and all(isinstance(v, bool | int | float) for v in part):
        return np.asarray(part)
    return part


def leaf_spec(leaf: Any) -> Any:
    """The `tf.TypeSpec` of a NumPy array or tensor with its rows."""
    if isinstance(leaf, np.ndarray):
        return tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype))
    return None if leaf is None else tf.type_spec_from_value(leaf)


def common_spec(batches: list[Any], kind: str) -> Any:
    """The spec that all of the first batches have: the rows, and dimensions in which they differ, are None.

    Raises:
        ValueError: if they differ in structure, rank or dtype.
    """
    specs = [tf.nest.map_structure(_open_spec, batch) for batch in batches]
    result = specs[0]
    for number, spec in enumerate(specs[1:], 1):
        try:
            result = tf.nest.map_structure(_merge, result, spec)
        except (TypeError, ValueError):
            raise ValueError(
                f"Batch {number} of the {kind} is {spec}, but the first batch is {specs[0]}."
            ) from None
    return result


def _open_spec(leaf: Any) -> Any:
    return None if leaf is None else spec_without_rows(leaf_spec(leaf))


def _merge(a: Any, b: Any) -> Any:
    if a is None and b is None:
        return None
    merged = a.most_specific_common_supertype([b]) if a is not None and b is not None else None
    if merged is None or getattr(merged, "shape", tf.TensorShape([])).rank is None:
        raise ValueError
    return merged


def _skeleton(structure: Any) -> Any:
    """The structure without its leaves, as something that can be compared and hashed."""
    if isinstance(structure, dict):
        return tuple((key, _skeleton(structure[key])) for key in sorted(structure, key=str))
    if isinstance(structure, tuple):
        return tuple(_skeleton(part) for part in structure)
    return structure is None


class BatchCheck:
    """Whether batches are like the first ones. Keeps the layouts that it has found right, so it costs little."""

    def __init__(self, spec: Any, kind: str) -> None:
        self._spec = spec
        self._kind = kind
        self._right: set[Any] = set()

    def layout(self, batch: Any, number: int) -> tuple[Any, ...]:
        """A key that is equal for batches of one layout, their rows included: the structure, then each leaf.

        Raises:
            ValueError: if the batch has another structure, dtype, rank or fixed dimension than the first
                ones.
        """
        leaves = tf.nest.flatten(batch)
        key = (
            _skeleton(batch),
            *((v.dtype, v.shape) if isinstance(v, np.ndarray) else leaf_spec(v) for v in leaves),
        )
        if key not in self._right:
            self._check(batch, number)
            self._right.add(key)
            if len(self._right) > 1000:
                self._right.clear()
        return key

    def _check(self, batch: Any, number: int) -> None:
        try:
            tf.nest.assert_same_structure(self._spec, batch)
        except (TypeError, ValueError):
            raise ValueError(
                f"Batch {number} of the {self._kind} has another structure than the first: "
                f"{tf.nest.map_structure(_open_spec, batch)}, not {self._spec}."
            ) from None
        named = [
            leaf for name, part in zip(("x", "y", "sample_weight"), batch) for leaf in _named(name, part)
        ]
        for (path, leaf), spec in zip(named, tf.nest.flatten(self._spec)):
            found = _open_spec(leaf)
            if (found is None) != (spec is None) or (spec is not None and not spec.is_compatible_with(found)):
                raise ValueError(
                    f"{path} of batch {number} of the {self._kind} is {found}, but the first batches have {spec}; "
                    "every batch must have the same dtypes and, but for the rows, the same shapes (a dimension may "
                    "vary if the first two batches differ in it)."
                )


def _named(name: str, structure: Any) -> list[tuple[str, Any]]:
    """The leaves with their places, in the order of `tf.nest`."""
    paths = tf.nest.flatten(structure)
    if len(paths) == 1:
        return [(name, paths[0])]
    return [(f"array {index} of {name}", leaf) for index, leaf in enumerate(paths)]


def host_rows(batch: Any) -> int:
    """The rows of a checked batch."""
    for leaf in tf.nest.flatten(batch):
        if isinstance(leaf, np.ndarray):
            return leaf.shape[0]
    return int(row_count(batch))
