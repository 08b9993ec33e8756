"""The one door: any input that Keras takes, as a `Source`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from . import checks
from .arrays import ArraySource, RowOrder
from .base import Chunk, Source
from .convert import as_host_array, is_array, lists_to_tuples, merge_number_lists
from .readers import weighted_reader


def make_source(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
    seed: int = 0,
    strategy: tf.distribute.Strategy | None = None,
) -> Source:
    """Makes the source of global batches from what was given to `fit`, `evaluate` or `predict`.

    Args:
        x: any input that the guide (docs/guides/input.md) lists.
        y: targets, for arrays.
        sample_weight: weights of the rows, for arrays.
        batch_size: rows of a global batch, for arrays; by default 32, or the rows divided by `steps_per_epoch`.
        steps_per_epoch: the batches of an epoch; by default one pass over the data.
        shuffle: whether to read arrays in a new random order in every epoch; "batch" shuffles within each batch.
        class_weight: weight of each class of `y`.
        seed: int; the order of the rows is a function of it.
        strategy: the strategy that will consume the batches; by default the current one.

    Returns:
        The source, checked: what cannot work is refused here, before the first step.

    Raises:
        ValueError: for values that cannot work.
        TypeError: for types that cannot work.
    """
    batch_size = checks.positive_int("batch_size", batch_size)
    steps_per_epoch = checks.positive_int("steps_per_epoch", steps_per_epoch)
    weights = checks.class_weights(class_weight)
    source = _from_arrays(x, y, sample_weight, batch_size, steps_per_epoch, shuffle, seed)
    if weights is not None:
        checks.class_weight_applies(source.spec, class_weight)
        source = _ClassWeighted(source, weights)
    return source


def _from_arrays(
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    steps_per_epoch: int | None,
    shuffle: bool | str,
    seed: int,
) -> Source:
    arrays = standard_arrays(x, y, sample_weight)
    rows = checks.same_rows(arrays)
    if batch_size is None:
        batch_size = math.ceil(rows / steps_per_epoch) if steps_per_epoch else 32
    order = RowOrder(rows, batch_size, shuffle, seed, steps_per_epoch)
    return ArraySource(arrays, order)


def standard_arrays(x: Any, y: Any, sample_weight: Any) -> tuple[Any, ...]:
    """The arguments as the tuple `(x,)`, `(x, y)` or `(x, y, sample_weight)` of NumPy arrays and tensors.

    Raises:
        TypeError: if one of them is no array.
        ValueError: if `sample_weight` does not fit the structure of `y`.
    """
    parts = [lists_to_tuples(merge_number_lists(part)) for part in (x, y, sample_weight)]
    for argument, part in zip(("x", "y", "sample_weight"), parts):
        for path, leaf in checks.named_leaves(argument, part):
            if not is_array(leaf):
                raise TypeError(
                    f"{path} is a {type(leaf).__name__}; give arrays or tensors with rows, a tf.data.Dataset, a "
                    "keras.utils.PyDataset, a torch DataLoader or a generator of batches."
                )
    x, y, sample_weight = (tf.nest.map_structure(as_host_array, part) for part in parts)
    if y is None:
        return (x,)
    if sample_weight is None:
        return (x, y)
    return (x, y, weights_like_targets(y, sample_weight))


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
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"sample_weight must have one array for each output of y: {error}".splitlines()[0]
            ) from None
        return sample_weight
    shape = tuple(sample_weight.shape)
    if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(
            f"sample_weight has shape {shape}, but y has several outputs; give one weight for each row, or one array for "
            "each output in the structure of y."
        )
    return tf.nest.map_structure(lambda _: sample_weight, y)


class _ClassWeighted:
    """A source whose batches carry the weights of their classes."""

    def __init__(self, source: Source, weights: tuple[tuple[int, ...], tuple[float, ...]]) -> None:
        self._source = source
        self._weights = weights
        x, y = source.spec[:2]
        rank = y.shape.rank
        dims = [None] * max(1, rank - 1) if rank is not None else None
        import keras

        self.spec = (x, y, tf.TensorSpec(dims, keras.config.floatx()))

    def take(self, max_steps: int) -> Chunk | None:
        chunk = self._source.take(max_steps)
        if chunk is None:
            return None
        return dataclasses.replace(chunk, reader=weighted_reader(chunk.reader, *self._weights))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)
