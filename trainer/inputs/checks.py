"""What must be true of `fit`'s arguments before the first step; the messages name the argument, the value, the cure."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .rows import is_extension, is_scalar, row_count
from .structure import named_parts, unpack


def same_rows(arrays: Any) -> int:
    """The number of rows of every array in a batch.

    Raises:
        ValueError: if an array has no rows, no row dimension, or if they differ.
    """
    sizes = list_sizes(arrays)
    if not sizes:
        raise ValueError(
            "x is None or an empty structure, so there is nothing to read; give at least one array."
        )
    counts = {rows for _, rows in sizes}
    listing = ", ".join(f"{name}: {rows}" for name, rows in sizes)
    if len(counts) > 1:
        raise ValueError(f"All arrays must have the same number of rows, but they have {listing}.")
    rows = counts.pop()
    if rows == 0:
        raise ValueError(f"The arrays have no rows ({listing}); give at least one row.")
    return rows


def check_target_rows(batch: Any, replicas: int) -> list[Any]:
    """Refuses a batch whose targets or weights have other rows than its inputs; in a graph, where that is not known before.

    On one replica fewer rows may be meant, as in Keras: a loss can repeat a single one.

    Args:
        batch: for a step of Keras' own: `(x, y)` or `(x, y, sample_weight)`.
        replicas: that share out the rows.

    Returns:
        The operations that check when the step runs: it begins after them, or an operation of the model might fail first.

    Raises:
        ValueError: where the rows are known; else `tf.errors.InvalidArgumentError` when the step runs.
    """
    x, *others = unpack(batch)
    checks = []
    for argument, part in zip(("y", "sample_weight"), others):
        for path, leaf in named_leaves(argument, part):
            if leaf is None or is_scalar(leaf):
                continue
            expected, given = row_count(x), row_count(leaf)
            fits = given == expected if replicas > 1 else given <= expected
            text = f"`{path}` must have the rows of `x`: give one of it for each row of the inputs. Received"
            if isinstance(fits, bool):
                if not fits:
                    raise ValueError(f"{text}: {given} rows in `{path}`, {expected} in `x`.")
            else:
                check = tf.debugging.Assert(fits, [f"{text} rows in `{path}` and in `x`:", given, expected])
                checks += [] if check is None else [check]
    return checks


def list_sizes(arrays: Any) -> list[tuple[str, int]]:
    """`(name, rows)` of every array, named by its place (`x['image']`, `y[0]`)."""
    sizes = []
    for argument, part in named_parts(arrays):
        for path, leaf in named_leaves(argument, part):
            if leaf is None:
                continue
            if not is_extension(leaf) and tf.TensorShape(leaf.shape).rank == 0:
                raise ValueError(
                    f"{path} ({leaf!r}) is a scalar; the first dimension of every array is its rows."
                )
            sizes.append((path, int(row_count(leaf))))
    return sizes


def named_leaves(name: str, structure: Any) -> list[tuple[str, Any]]:
    """The leaves of a nest with their places."""
    if isinstance(structure, dict):
        items = [(f"{name}[{key!r}]", part) for key, part in structure.items()]
    elif isinstance(structure, list | tuple):
        items = [(f"{name}[{index}]", part) for index, part in enumerate(structure)]
    else:
        return [(name, structure)]
    return [leaf for path, part in items for leaf in named_leaves(path, part)]


def alone(kind: str, y: Any, sample_weight: Any, batch_size: int | None) -> None:
    """Checks that nothing is given besides an input that has its own targets, weights and batches.

    Raises:
        ValueError: if it is.
    """
    if y is not None:
        raise ValueError(
            f"y ({type(y).__name__}) must not be given when x is a {kind}; let x give tuples (inputs, targets)."
        )
    if sample_weight is not None:
        raise ValueError(
            f"sample_weight ({type(sample_weight).__name__}) must not be given when x is a {kind}; let x give tuples "
            "(inputs, targets, sample_weights)."
        )
    if batch_size is not None:
        raise ValueError(
            f"batch_size ({batch_size}) must not be given when x is a {kind}, which has its own batches."
        )


def batched(element_spec: Any, parts: int) -> None:
    """Checks by its spec that a dataset gives batches, not single rows.

    A scalar beside arrays with an open number of rows is a value of the whole batch.

    Args:
        element_spec: of the dataset.
        parts: int; elements that make one batch.

    Raises:
        ValueError: if elements are rows, or their arrays cannot have the same number of rows.
    """
    shapes = (getattr(leaf, "shape", None) for leaf in tf.nest.flatten(element_spec))
    shapes = [shape for shape in shapes if shape is not None and shape.rank is not None]
    leading = [shape[0] for shape in shapes if shape.rank]
    if len(leading) < len(shapes) and (None not in leading or parts > 1):
        raise ValueError(
            f"x is a dataset of single rows ({element_spec}); batch it first: dataset.batch(global_batch_size)."
        )
    known = {rows for rows in leading if rows is not None}
    if len(known) > 1:
        raise ValueError(
            f"The arrays of the dataset's elements have different numbers of rows ({sorted(known)} in {element_spec}); "
            "if the elements are single rows, batch them first: dataset.batch(global_batch_size)."
        )


def weights_like_targets(y: Any, sample_weight: Any) -> Any:
    """`sample_weight` in the structure of `y`: one array of weights counts for every output.

    Raises:
        ValueError: if it is neither one weight for each row nor one array for each output.
    """
    if not tf.nest.is_nested(y):
        return sample_weight
    if tf.nest.is_nested(sample_weight):
        try:
            tf.nest.assert_same_structure(y, sample_weight)
        except (TypeError, ValueError):
            raise ValueError(
                f"sample_weight ({_names(sample_weight)}) must have one array for each output of y ({_names(y)})."
            ) from None
        return sample_weight
    shape = tuple(sample_weight.shape)
    if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(
            f"sample_weight has shape {shape}, but y has several outputs; give one weight for each row, or one array "
            "for each output in the structure of y."
        )
    return tf.nest.map_structure(lambda _: sample_weight, y)


def _names(structure: Any) -> str:
    return ", ".join(path for path, _ in named_leaves("output", structure))
