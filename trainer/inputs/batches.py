"""Batches that Python code makes: what counts as one, and whether it is like the ones before it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from . import checks
from .convert import host_arrays, is_array
from .feed import Group, Grouping
from .rows import is_scalar, row_count, spec_without_rows
from .structure import named_parts


@contextlib.contextmanager
def noting_place(place: str) -> Iterator[None]:
    """Lets an error of the user's code pass as it is, with a note that says where in the input it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised by the input: {place} (counted from 0).")
        raise


def noted(items: Iterator[Any], places: Iterable[str]) -> Iterator[Any]:
    """`items`; an error of the code that gives one has a note with its place."""
    for place in places:
        with noting_place(place):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def standard_batch(
    item: Any, kind: str, number: int, lists: bool = True, sharing: checks.Sharing = checks.ONE_REPLICA
) -> Any:
    """What a generator, PyDataset or DataLoader gave, in the structure that Keras hands to a step.

    Args:
        item: the object given: a tuple, a dict, or x alone as one array.
        kind: the kind of input, for messages.
        number: int; which batch of the epoch it is, from 0.
        lists: whether a list will do for the tuple.
        sharing: whether its arrays may have different rows.

    Returns:
        The batch, with NumPy arrays and tensors as leaves, not yet cast, and tuples in place of lists.

    Raises:
        ValueError: if it is no such thing, or its arrays differ in rows or have none.
        TypeError: if something in it is no array.
    """
    if isinstance(item, list) and lists:
        item = tuple(item)
    if kind == "PyDataset" and is_array(item) and item is not None:
        item = (item,)
    if not (isinstance(item, tuple | dict) or is_array(item)) or item is None or len(item) == 0:
        size = f" of length {len(item)}" if isinstance(item, tuple | list) else ""
        raise ValueError(
            f"Batch {number} of the {kind} is a {type(item).__name__}{size}; a batch must be a tuple "
            "(inputs,), (inputs, targets) or (inputs, targets, sample_weights)."
        )
    where = f"Batch {number} of the {kind} has a {{kind}} as {{place}}; give arrays."
    parts = [host_arrays(name, _joined_numbers(part), where) for name, part in named_parts(item)]
    batch = parts[0] if not isinstance(item, tuple) else tuple(parts)
    if hasattr(item, "_fields"):
        batch = type(item)(*parts)
    try:
        sharing.check(batch)
    except ValueError as error:
        raise ValueError(f"Batch {number} of the {kind}: {error}") from None
    return batch


def _joined_numbers(part: Any) -> Any:
    """A list or tuple of Python numbers is one array of them."""
    if isinstance(part, list | tuple) and part and all(isinstance(v, bool | int | float) for v in part):
        return np.asarray(part)
    return part


def _leaf_spec(leaf: Any) -> Any:
    """The `tf.TypeSpec` of a NumPy array or tensor with its rows."""
    if isinstance(leaf, np.ndarray):
        return tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype))
    return None if leaf is None else tf.type_spec_from_value(leaf)


def _open_spec(leaf: Any) -> Any:
    return spec_without_rows(_leaf_spec(leaf))


def _common_spec(batches: list[Any], kind: str) -> Any:
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


def _merge(a: Any, b: Any) -> Any:
    if a is None and b is None:
        return None
    merged = a.most_specific_common_supertype([b]) if a is not None and b is not None else None
    if merged is None or getattr(merged, "shape", tf.TensorShape([])).rank is None:
        raise ValueError
    return merged


class PythonBatches:
    """The batches of one input: brought into one form, checked against the first ones, joined to groups.

    Args:
        first: the first items of the input.
        kind: of the input, for messages.
        steady: see `Grouping`.
        lists: see `standard_batch`.
        sharing: see `standard_batch`.

    Attributes:
        spec: of a batch.
        usual_rows: int or None; of the first batch, which most others have; None: its arrays have different rows.

    Raises:
        ValueError, TypeError: an item is no batch, or they differ.
    """

    def __init__(
        self,
        first: list[Any],
        kind: str,
        steady: bool,
        lists: bool = True,
        sharing: checks.Sharing = checks.ONE_REPLICA,
    ) -> None:
        self._kind, self._lists, self._sharing = kind, lists, sharing
        batches = [standard_batch(item, kind, number, lists, sharing) for number, item in enumerate(first)]
        self.spec = _common_spec(batches, kind)
        self.usual_rows = _rows(batches[0]) if batches else None
        self._grouping = Grouping(steady)
        self._known_layouts: set[Any] = set()

    def groups(self, items: Iterator[Any], first: int, waiting: Callable[[], bool]) -> Iterator[Group]:
        """The groups of these items, of which the first is batch `first` of the epoch; see `Grouping`."""
        return self._grouping.groups(self._checked(items, first), waiting)

    def _checked(self, items: Iterator[Any], first: int) -> Iterator[tuple[Any, Any, int | None]]:
        for number, item in enumerate(items, first):
            batch = standard_batch(item, self._kind, number, self._lists, self._sharing)
            layout = _layout(batch)
            if layout not in self._known_layouts:
                self._check(batch, number)
                if len(self._known_layouts) > 1000:
                    self._known_layouts.clear()
                self._known_layouts.add(layout)
            yield batch, layout, _rows(batch)

    def _check(self, batch: Any, number: int) -> None:
        try:
            tf.nest.assert_same_structure(self.spec, batch)
        except (TypeError, ValueError):
            raise ValueError(
                f"Batch {number} of the {self._kind} has another structure than the first: "
                f"{tf.nest.map_structure(_open_spec, batch)}, not {self.spec}."
            ) from None
        for (name, part), (_, specs) in zip(named_parts(batch), named_parts(self.spec)):
            leaves = tf.nest.flatten(part)
            for index, (leaf, spec) in enumerate(zip(leaves, tf.nest.flatten(specs))):
                found, where = _open_spec(leaf), name if len(leaves) == 1 else f"array {index} of {name}"
                if found is spec is None or (spec is not None and spec.is_compatible_with(found)):
                    continue
                raise ValueError(
                    f"{where} of batch {number} of the {self._kind} is {found}, but the first batches have {spec}; "
                    "every batch must have the same dtypes and, but for the rows, the same shapes (a dimension may "
                    "vary if the first two batches differ in it)."
                )


def _layout(batch: Any) -> tuple[Any, ...]:
    """A key that is equal for batches of one layout, their rows included: the structure, then each leaf."""
    leaves = tf.nest.flatten(batch)
    return (
        _skeleton(batch),
        *((leaf.dtype, leaf.shape) if isinstance(leaf, np.ndarray) else _leaf_spec(leaf) for leaf in leaves),
    )


def _skeleton(structure: Any) -> Any:
    """The structure without its leaves, as something that can be compared and hashed."""
    if isinstance(structure, dict):
        return tuple((key, _skeleton(structure[key])) for key in sorted(structure, key=str))
    if isinstance(structure, tuple):
        return type(structure), *(_skeleton(part) for part in structure)
    return structure is None


def _rows(batch: Any) -> int | None:
    """The rows of a checked batch; None where its arrays have different ones. Quick where they are NumPy's."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None and not is_scalar(leaf)]
    counts = {len(leaf) if isinstance(leaf, np.ndarray) else int(row_count(leaf)) for leaf in leaves}
    return counts.pop() if len(counts) == 1 else None
