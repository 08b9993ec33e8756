"""The one door: any input that Keras takes, as a `Source`."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from . import checks
from .arrays import ArraySource, RowOrder
from .convert import (
    as_host_array,
    host_bytes,
    is_array,
    is_memory_mapped,
    lists_to_tuples,
    merge_number_lists,
)
from .datasets import DatasetSource, DistributedSource, as_tuple, is_infinite
from .ordered import PyDatasetSource, StreamedArrays
from .readers import weights_of_classes
from .source import Source
from .streams import StreamSource
from .weighted import ClassWeighted

RESIDENT_BYTES = 2**30

_DISTRIBUTED = (tf.distribute.DistributedDataset,)


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
    resident_bytes: int = RESIDENT_BYTES,
) -> Source:
    """Makes the source of global batches from what was given to `fit`, `evaluate` or `predict`.

    Args:
        x: any input that the guide (docs/guides/input.md) lists.
        y: targets, for arrays.
        sample_weight: weights of the rows, for arrays.
        batch_size: rows of a global batch, for arrays; by default 32, or the rows divided by
            `steps_per_epoch`.
        steps_per_epoch: the batches of an epoch; by default one pass over the data.
        shuffle: whether to read arrays in a new random order in every epoch; "batch" shuffles within each
            batch.
        class_weight: weight of each class of `y`.
        seed: int; the order of the rows is a function of it.
        strategy: the strategy that will consume the batches; by default the current one.
        resident_bytes: arrays that need more are not copied but read batch by batch.

    Returns:
        The source, checked: what cannot work is refused here, before the first step.

    Raises:
        ValueError: for values that cannot work.
        TypeError: for types that cannot work.
    """
    batch_size = checks.positive_int("batch_size", batch_size)
    steps_per_epoch = checks.positive_int("steps_per_epoch", steps_per_epoch)
    most_steps = keras.config.max_steps_per_epoch()
    if most_steps and (steps_per_epoch is None or most_steps < steps_per_epoch):
        warnings.warn(f"Limiting steps_per_epoch to {most_steps}", stacklevel=4)
        steps_per_epoch = most_steps
    if shuffle not in (True, False, "batch"):
        raise ValueError(f'shuffle ({shuffle!r}) must be True, False or "batch".')
    weights = checks.class_weights(class_weight)
    strategy = strategy or tf.distribute.get_strategy()
    kind = kind_of(x)
    if kind == "array":
        source = _from_arrays(
            x, y, sample_weight, batch_size, steps_per_epoch, shuffle, seed, strategy, resident_bytes
        )
    else:
        checks.alone(kind, y, sample_weight, batch_size)
        if shuffle == "batch":  # True is the default of `fit`: it says nothing
            _warn_shuffle(shuffle, kind)
        if kind == "tf.data.Dataset":
            return _from_dataset(_weigh_dataset(x, weights, class_weight), steps_per_epoch)
        if kind == "function of tf.distribute.InputContext":
            return _from_function(x, steps_per_epoch, strategy, weights, class_weight)
        if kind == "tf.distribute.DistributedDataset":
            return _from_distributed(x, steps_per_epoch, strategy, weights, class_weight)
        source = _from_python(x, kind, steps_per_epoch, shuffle, seed, strategy)
    if weights is not None:
        checks.class_weight_applies(source.spec, class_weight)
        return ClassWeighted(source, weights)
    return source


def kind_of(x: Any) -> str:
    """The kind of input that `x` is, in the words of the messages.

    Raises:
        TypeError: if it is none.
    """
    if isinstance(x, tf.data.Dataset):
        return "tf.data.Dataset"
    if isinstance(x, _DISTRIBUTED) or type(x).__name__ == "DistributedDatasetsFromFunction":
        return "tf.distribute.DistributedDataset"
    if isinstance(x, keras.utils.PyDataset):
        return "PyDataset"
    if hasattr(x, "get_tf_dataset"):
        return "Keras data adapter"
    if isinstance(x, list | tuple | dict | str | bytes) or is_array(x) or isinstance(x, np.generic):
        return "array"
    if hasattr(x, "__next__"):
        return "generator"
    if any(kind.__module__.startswith("torch.utils.data") for kind in type(x).__mro__):
        return "torch DataLoader"
    if isinstance(x, Iterable):
        return "iterable"
    if callable(x):
        return "function of tf.distribute.InputContext"
    return "array"


def _warn_shuffle(shuffle: Any, kind: str) -> None:
    warnings.warn(
        f"`shuffle={shuffle}` was passed, but will be ignored since the data `x` was provided as a {kind}, which is "
        "expected to already be shuffled.",
        stacklevel=4,
    )


def _from_arrays(
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    steps_per_epoch: int | None,
    shuffle: bool | str,
    seed: int,
    strategy: tf.distribute.Strategy,
    resident_bytes: int,
) -> Source:
    arrays = standard_arrays(x, y, sample_weight)
    rows = checks.same_rows(arrays)
    if batch_size is None:
        batch_size = math.ceil(rows / steps_per_epoch) if steps_per_epoch else 32
    order = RowOrder(rows, batch_size, shuffle, seed, steps_per_epoch)
    leaves = tf.nest.flatten(arrays)
    size = sum(host_bytes(leaf) for leaf in leaves)
    if size > resident_bytes or any(is_memory_mapped(leaf) for leaf in leaves):
        return StreamedArrays(arrays, order)
    return ArraySource(arrays, order, _home(leaves, size, strategy))


def _home(leaves: list[Any], size: int, strategy: tf.distribute.Strategy) -> str:
    """The device where resident arrays stay: the strategy's own when it is a single GPU, otherwise the host."""
    if strategy.num_replicas_in_sync > 1:
        return "CPU:0"
    devices = _local_devices(strategy) or [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    device = devices[0] if devices else "CPU:0"
    dense = all(
        leaf is None or (isinstance(leaf, np.ndarray | tf.Tensor) and tf.as_dtype(leaf.dtype) != tf.string)
        for leaf in leaves
    )
    return device if "GPU" in device and dense and size < 2**30 else "CPU:0"


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
    return (x, y, checks.weights_like_targets(y, sample_weight))


def _from_dataset(dataset: tf.data.Dataset, steps_per_epoch: int | None) -> Source:
    if not isinstance(dataset.element_spec, tuple) or hasattr(dataset.element_spec, "_fields"):
        dataset = dataset.map(lambda element: (element,))
    as_tuple(dataset.element_spec)
    checks.batched(dataset.element_spec)
    _check_finite(dataset, steps_per_epoch)
    return DatasetSource(dataset, steps_per_epoch)


def _check_finite(dataset: Any, steps_per_epoch: int | None) -> None:
    if steps_per_epoch is None and is_infinite(dataset):
        raise ValueError(
            "steps_per_epoch (None) must be given for a dataset that never ends; in evaluate and predict it is called "
            "steps."
        )


def _weigh_dataset(dataset: Any, weights: Any, given: Any) -> Any:
    if weights is None:
        return dataset
    spec = dataset.element_spec
    checks.class_weight_applies(spec if isinstance(spec, tuple) else (spec,), given)
    return dataset.map(
        lambda *batch: (batch[0], batch[1], weights_of_classes(batch[1], *weights)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def _from_function(
    function: Any, steps_per_epoch: int | None, strategy: tf.distribute.Strategy, weights: Any, given: Any
) -> Source:
    context = input_context(strategy)
    try:
        dataset = function(context)
    except TypeError as error:
        error.add_note(
            "x is a function, so it was called with a tf.distribute.InputContext. Call a generator function."
        )
        raise
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"x is a function that returned a {type(dataset).__name__}; a function of tf.distribute.InputContext must "
            "return a tf.data.Dataset, and a generator function must be called."
        )
    dataset = _weigh_dataset(dataset, weights, given)
    if not isinstance(dataset.element_spec, tuple):
        dataset = dataset.map(lambda element: (element,))
    as_tuple(dataset.element_spec)
    checks.batched(dataset.element_spec)
    _check_finite(dataset, steps_per_epoch)
    parts = max(1, strategy.num_replicas_in_sync // context.num_input_pipelines)
    return DatasetSource(dataset, steps_per_epoch, parts, per_worker=context.num_input_pipelines > 1)


def input_context(strategy: tf.distribute.Strategy) -> tf.distribute.InputContext:
    """What a function of `tf.distribute.InputContext` is called with on this worker."""
    seen: list[tf.distribute.InputContext] = []

    def look(context: tf.distribute.InputContext) -> tf.data.Dataset:
        seen.append(context)
        return tf.data.Dataset.range(1)

    # Strategies without input of their own (parameter servers outside of a coordinator) have one pipeline.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        strategy.distribute_datasets_from_function(look)
    return seen[0] if seen else tf.distribute.InputContext(1, 0, strategy.num_replicas_in_sync)


def _from_distributed(
    dataset: Any, steps_per_epoch: int | None, strategy: tf.distribute.Strategy, weights: Any, given: Any
) -> Source:
    _check_finite(dataset, steps_per_epoch)
    source = DistributedSource(dataset, steps_per_epoch, strategy, many_workers(strategy), weights)
    if weights is not None:
        checks.class_weight_applies(source.spec[:2], given)
    return source


def many_workers(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy has replicas in other processes."""
    return strategy.num_replicas_in_sync > max(1, len(_local_devices(strategy)))


def _local_devices(strategy: tf.distribute.Strategy) -> tuple[str, ...]:
    """The devices of this worker's replicas; none where there is no strategy."""
    try:
        return tuple(strategy.extended.worker_devices)
    except RuntimeError:  # the default strategy
        return ()


def _from_python(
    x: Any, kind: str, steps_per_epoch: int | None, shuffle: Any, seed: int, strategy: tf.distribute.Strategy
) -> Source:
    steady = many_workers(strategy)
    if kind == "PyDataset":
        return PyDatasetSource(x, shuffle, seed, steps_per_epoch, steady)
    if kind == "Keras data adapter":
        return _from_dataset(x.get_tf_dataset(), steps_per_epoch)
    return StreamSource(x, kind, steps_per_epoch, steady)
