"""What must be true of `fit`'s arguments before the first step; the messages name the argument, the value, the cure."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from .rows import is_extension, is_scalar, row_count
from .structure import named_parts, unpack


def same_rows(arrays: Any) -> int:
    """The number of rows of every array in a batch.

    Raises:
        ValueError: if an array has no rows, no row dimension, or if they differ.
    """
    sizes = some_rows(arrays)
    if len({rows for _, rows in sizes}) > 1:
        raise ValueError(f"All arrays must have the same number of rows, but they have {_listing(sizes)}.")
    return sizes[0][1]


def some_rows(arrays: Any) -> list[tuple[str, int]]:
    """`(name, rows)` of every array in a batch.

    Raises:
        ValueError: if there is no array, or one has no rows or no row dimension.
    """
    sizes = list_sizes(arrays)
    if not sizes:
        raise ValueError(
            "x is None or an empty structure, so there is nothing to read; give at least one array."
        )
    if any(rows == 0 for _, rows in sizes):
        raise ValueError(f"The arrays have no rows ({_listing(sizes)}); give at least one row.")
    return sizes


def _listing(sizes: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {rows}" for name, rows in sizes)


@dataclasses.dataclass(frozen=True)
class Sharing:
    """What decides whether the arrays of a batch may have different numbers of rows.

    Attributes:
        own_step: whether the step that gets the batch is of the user's own.
        replicas: that share out the rows, the micro-batches of a pipeline among them.
    """

    own_step: bool = False
    replicas: int = 1

    def check(self, batch: Any) -> None:
        """Refuses a batch whose arrays have rows that cannot be right.

        Raises:
            ValueError: see `same_rows`; rows may differ where `allows` says so.
        """
        if not self.allows(batch, some_rows(batch)):
            same_rows(batch)

    def allows(self, batch: Any, sizes: Any) -> bool:
        """Whether the arrays of a batch (or its spec) may have these numbers of rows.

        A step of the user's own may take apart what it likes. On one replica a model may, too (the nodes and the edges of
        graphs), but where all inputs have the same rows, targets with others are a mistake.

        Args:
            batch: nest of arrays or specs.
            sizes: `(name, rows)` of each array.
        """
        if self.own_step:
            return True
        x = {name for name, _ in named_leaves("x", unpack(batch)[0])}
        return self.replicas == 1 and len({rows for name, rows in sizes if name in x}) > 1


ONE_REPLICA = Sharing()


def check_rows(batch: Any, replicas: int, inputs_alone: bool = False) -> list[Any]:
    """Refuses a batch whose arrays have other rows than its inputs; in a graph, where that is not known before.

    On one replica targets with fewer rows may be meant, as in Keras: a loss can repeat a single one. There the inputs may
    have different rows, and targets those of any.

    Args:
        batch: for a step of Keras' own: `(x, y)` or `(x, y, sample_weight)`.
        replicas: that share out the rows.
        inputs_alone: whether targets and weights are not used.

    Returns:
        The operations that check when the step runs: it begins after them, or an operation of the model might fail first.

    Raises:
        ValueError: where the rows are known; else `tf.errors.InvalidArgumentError` when the step runs.
    """
    x, *others = unpack(batch)
    inputs = _with_rows("x", x)
    if not inputs:
        return []
    expected = row_count(x)
    text = (
        "`{}` must have the rows of `{}`, because {} replicas share out the rows of a batch: train on one replica, or take "
        "such batches in a `train_step` of your own. Received"
    )
    checks = []
    if replicas > 1:
        for path, leaf in inputs[1:]:
            given = row_count(leaf)
            sentence = text.format(path, inputs[0][0], replicas)
            checks += _check(given == expected, sentence, path, inputs[0][0], given, expected)
    else:
        counts = [row_count(leaf) for _, leaf in inputs]
        known = all(isinstance(count, int) for count in counts)
        expected = max(counts) if known else functools.reduce(tf.maximum, counts)
    for argument, part in () if inputs_alone else zip(("y", "sample_weight"), others):
        for path, leaf in _with_rows(argument, part):
            given = row_count(leaf)
            sentence = (
                f"`{path}` must have the rows of `x`: give one of it for each row of the inputs. Received"
            )
            fits = given == expected if replicas > 1 else given <= expected
            checks += _check(fits, sentence, path, "x", given, expected)
    return checks


def _with_rows(name: str, structure: Any) -> list[tuple[str, Any]]:
    leaves = named_leaves(name, structure)
    return [(path, leaf) for path, leaf in leaves if leaf is not None and not is_scalar(leaf)]


def _check(fits: Any, sentence: str, path: str, other: str, given: Any, expected: Any) -> list[Any]:
    if isinstance(fits, bool):
        if not fits:
            raise ValueError(f"{sentence}: {given} rows in `{path}`, {expected} in `{other}`.")
        return []
    check = tf.debugging.Assert(fits, [f"{sentence} rows in `{path}` and in `{other}`:", given, expected])
    return [] if check is None else [check]


def refuse_unequal_parts(batch: Any) -> list[Any]:
    """Refuses arrays of different rows where each worker reads its own: their shares would not be those of the batch.

    Returns and raises as `check_rows`.
    """
    (name, first), *others = [
        leaf for argument, part in named_parts(batch) for leaf in _with_rows(argument, part)
    ]
    sentence = (
        "`{}` must have the rows of `{}`, because each worker reads its own rows: give every worker the whole batches, as a "
        "tf.data.Dataset say. Received"
    )
    checks, expected = [], row_count(first)
    for path, leaf in others:
        given = row_count(leaf)
        checks += _check(given == expected, sentence.format(path, name), path, name, given, expected)
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


@contextlib.contextmanager
def named(argument: str = "", **names: str) -> Iterator[None]:
    """Errors of the block name the arguments that the user gave.

    Args:
        argument: what the messages begin with; "" for nothing.
        names: of arguments in the messages, with those to put in their place.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if error.args and isinstance(error.args[0], str):
            text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), error.args[0])
            error.args = (
                text if text.startswith(f"`{argument}`") else f"`{argument}`: {text}" if argument else text,
            )
        raise


def alone(kind: str, y: Any = None, sample_weight: Any = None, **batch_size: int | None) -> None:
    """Checks that nothing is given besides an input that has its own targets, weights and batches.

    Args:
        kind: of the input.
        y: targets.
        sample_weight: weights of the rows.
        batch_size: rows of a batch, under the name of the argument.

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
    for name, rows in batch_size.items():
        if rows is not None:
            raise ValueError(
                f"{name} ({rows}) must not be given when x is a {kind}, which has its own batches."
            )


def batched(element_spec: Any, parts: int, sharing: Sharing = ONE_REPLICA) -> None:
    """Checks by its spec that a dataset gives batches, not single rows.

    A scalar beside arrays with an open number of rows is a value of the whole batch.

    Args:
        element_spec: of the dataset.
        parts: int; elements that make one batch.
        sharing: whether their arrays may have different rows.

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
    if len(known) > 1 and not sharing.allows(element_spec, _known_sizes(element_spec)):
        raise ValueError(
            f"The arrays of the dataset's elements have different numbers of rows ({sorted(known)} in {element_spec}); "
            "if the elements are single rows, batch them first: dataset.batch(global_batch_size); else take them in a "
            "`train_step` of your own."
        )


def _known_sizes(spec: Any) -> list[tuple[str, int]]:
    leaves = [leaf for argument, part in named_parts(spec) for leaf in named_leaves(argument, part)]
    shapes = [(path, getattr(leaf, "shape", None)) for path, leaf in leaves]
    return [(path, shape[0]) for path, shape in shapes if shape is not None and shape.rank and shape[0]]


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
