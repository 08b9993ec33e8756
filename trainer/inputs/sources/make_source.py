"""Converts any input that Keras accepts to a `Source`."""

import contextlib
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ....compat.tensorflow_private.tf_data import find_parts
from ....distribute.arguments import show, takes_arguments, whole_number
from ....distribute.hardware.data_placement import data_home
from ....distribute.replicas import shares_variables
from ....distribute.workers.agreement import spans_workers
from .. import input_checks
from ..batch import concat_samples, is_memory_mapped
from ..class_weights import check_class_weight, class_weights, weight_spec
from ..convert import is_array, resident_size, standard_arrays
from ..digests import digest_of
from ..position import SampleOrder
from ..same_input import check_same_input, is_unsharded
from .arrays import ArraySource, StreamedArrays
from .dataset_source import DatasetSource, without_optionals
from .python_inputs import PyDatasetSource, StreamSource
from .source import Source

RESIDENT_BYTES = 2**30
DISTRIBUTED = "tf.distribute.DistributedDataset"
FUNCTION = "function of tf.distribute.InputContext"


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
    other: Source | None = None,
    resumable: bool = True,
    custom_step: bool = False,
    call: str = "fit",
    named: Mapping[str, Any] | None = None,
) -> Source:
    """Make the source of global batches from the arguments of `fit`, `evaluate` or `predict`.

    Args:
        x: any input that the guide (docs/guides/input.md) lists.
        y: targets, for arrays.
        sample_weight: weights of the samples, for arrays.
        batch_size: samples of a global batch, for arrays; by default 32, or the samples divided by `steps_per_epoch`.
        steps_per_epoch: the batches of an epoch; by default one pass over the data.
        shuffle: whether to read arrays in a new random order in every epoch; "batch" shuffles within each batch.
        class_weight: weight of each class of `y`.
        seed: the order of the samples is a function of it.
        strategy: the strategy that will consume the batches; by default the current one.
        resident_bytes: larger arrays are not copied to the host's tensors but read batch by batch.
        other: another source of the same fit; arrays that both get are held once.
        resumable: whether its position will be requested: not in `evaluate` and `predict`.
        custom_step: whether a custom step gets the batches: their arrays may have different numbers of samples.
        call: what reads it, which is the same on all workers.
        named: generators of callbacks, by name, from which Python code may draw.

    Unsupported values and types raise a ValueError or TypeError here, before the first step.
    """
    batch_size = whole_number("batch_size", batch_size, optional=True)
    steps_per_epoch = _limit_steps(whole_number("steps_per_epoch", steps_per_epoch, optional=True))
    shuffle = check_shuffle(shuffle)
    weights = class_weights(class_weight)
    strategy = strategy or tf.distribute.get_strategy()
    assert strategy is not None

    kind = kind_of(x)
    if kind == "Keras data adapter":
        x = x.get_tf_dataset()
    check_same_input(x, strategy, kind, call)
    if kind == "array":
        arrays = standard_arrays(x, y, sample_weight)
        samples = input_checks.same_samples(arrays)
        if batch_size is None:
            batch_size = math.ceil(samples / steps_per_epoch) if steps_per_epoch else 32
        order = SampleOrder(samples, batch_size, shuffle, seed, steps_per_epoch)
        source = _from_arrays(arrays, order, strategy, resident_bytes, other)
    else:
        input_checks.alone(kind, y, sample_weight, batch_size=batch_size)
        if shuffle == "batch":  # True is the default of `fit`, not a request
            warnings.warn(
                f"`shuffle={shuffle}` was passed, but will be ignored since the data `x` was provided as a {kind}, which "
                "is expected to already be shuffled.",
                stacklevel=3,
            )
        sharing = input_checks.Sharing(custom_step, strategy.num_replicas_in_sync)
        if kind == "PyDataset":
            source = PyDatasetSource(
                x, shuffle, seed, steps_per_epoch, spans_workers(strategy), sharing, named or {}
            )
        elif kind in ("generator", "iterable", "torch DataLoader"):
            source = StreamSource(x, kind, steps_per_epoch, spans_workers(strategy), sharing, named or {})
        else:
            source = _from_dataset(x, kind, steps_per_epoch, strategy, resumable, sharing)
    if weights is not None:
        check_class_weight(source.spec, class_weight)
        source.class_weights, source.spec = weights, weight_spec(source.spec)
    return source


def check_shuffle(shuffle: Any) -> Any:
    """Return `shuffle` if it is None, True, False or "batch"."""
    if shuffle is None or (isinstance(shuffle, str) and shuffle == "batch"):
        return shuffle
    if not isinstance(shuffle, bool | np.bool_ | int) or shuffle not in (0, 1):
        raise ValueError(f'`shuffle` must be True, False or "batch". Received: {show(shuffle)}')
    return bool(shuffle)


def kind_of(x: Any) -> str:
    """Return the kind of the input `x`, as named in messages."""
    if isinstance(x, type):
        raise TypeError(f"`x` must be an instance: pass {x.__name__}(...). Received: {show(x)}")
    if isinstance(x, tf.data.Dataset):
        return "tf.data.Dataset"
    if isinstance(x, tf.distribute.DistributedDataset):
        return DISTRIBUTED
    if isinstance(x, keras.utils.PyDataset):
        return "PyDataset"
    if hasattr(x, "get_tf_dataset"):
        return "Keras data adapter"
    if isinstance(x, list | tuple | dict | str | bytes | keras.KerasTensor | np.generic) or is_array(x):
        return "array"
    if hasattr(x, "__next__"):
        return "generator"
    if any(kind.__module__.startswith("torch.utils.data") for kind in type(x).__mro__):
        return "torch DataLoader"
    if isinstance(x, Iterable):
        return "iterable"
    return FUNCTION if callable(x) else "array"


def _limit_steps(steps_per_epoch: int | None) -> int | None:
    """Return the steps of an epoch, at most Keras' global limit."""
    most_steps = keras.config.max_steps_per_epoch()
    if not most_steps or (steps_per_epoch is not None and steps_per_epoch <= most_steps):
        return steps_per_epoch
    warnings.warn(f"Limiting steps_per_epoch to {most_steps}", stacklevel=5)
    return most_steps


def _from_arrays(
    arrays: tuple[Any, Any, Any],
    order: SampleOrder,
    strategy: tf.distribute.Strategy,
    resident_bytes: int,
    other: Source | None,
) -> Source:
    batch = keras.utils.pack_x_y_sample_weight(*arrays)
    leaves = tf.nest.flatten(batch)
    mapped = any(is_memory_mapped(leaf) for leaf in leaves)
    dense = not mapped and all(
        leaf is None or (isinstance(leaf, np.ndarray | tf.Tensor) and tf.as_dtype(leaf.dtype) != tf.string)
        for leaf in leaves
    )
    held = other.held if isinstance(other, ArraySource) else {}
    home = data_home(
        sum(resident_size(leaf) for leaf in leaves if id(leaf) not in held), _replica_devices(strategy), dense
    )
    size = sum(resident_size(leaf) for leaf in leaves if isinstance(leaf, np.ndarray))
    if mapped or (size > resident_bytes and not home.devices):
        source: Source = StreamedArrays(batch, order, spans_workers(strategy))
        source.home = home.sentence
    else:
        source = ArraySource(batch, order, home, other)
        if spans_workers(strategy):
            source.digest = digest_of(batch)
    source.targets = arrays[1]
    return source


def _replica_devices(strategy: tf.distribute.Strategy) -> list[str]:
    """Return the devices of this worker's replicas."""
    if shares_variables(strategy):
        return []
    try:
        return list(strategy.extended.worker_devices)
    except RuntimeError:  # the default strategy
        return [gpu.name for gpu in tf.config.list_logical_devices("GPU")][:1]


def _from_dataset(
    x: Any,
    kind: str,
    steps_per_epoch: int | None,
    strategy: tf.distribute.Strategy,
    resumable: bool,
    sharing: input_checks.Sharing,
) -> Source:
    """Return the source of a `tf.data` pipeline; elements for single replicas are concatenated for this worker."""
    parts, per_worker, batches = 1, False, None
    if kind == FUNCTION:
        context = input_context(strategy)
        x = _call_with(context, x)
        parts = max(1, strategy.num_replicas_in_sync // context.num_input_pipelines)
        per_worker = context.num_input_pipelines > 1
    compared = (
        spans_workers(strategy) and kind != DISTRIBUTED and (not per_worker or is_unsharded(x, strategy))
    )
    if kind == DISTRIBUTED:
        datasets, replicas, batches = find_parts(x)
        per_worker = spans_workers(strategy)
        parts = max(1, replicas // input_context(strategy).num_input_pipelines)
        x = datasets[0]
        if len(datasets) > 1:  # one for each replica
            x, parts = tf.data.Dataset.zip(*datasets).map(lambda *each: concat_samples(each)), 1
    x = without_optionals(x)
    input_checks.check_batched(x.element_spec, parts, sharing)
    by_replica = kind in (FUNCTION, DISTRIBUTED)
    return DatasetSource(x, steps_per_epoch, parts, per_worker, by_replica, batches, resumable, compared)


def _call_with(context: tf.distribute.InputContext, function: Any) -> tf.data.Dataset:
    note = (
        "`x` is a function, so it is called with a tf.distribute.InputContext and must return a tf.data.Dataset. If it is a "
        "generator function, call it and pass the generator."
    )
    if not takes_arguments(function, 1):
        raise TypeError(f"{note} Received: {show(function)}, a function without arguments")
    try:
        dataset = function(context)
    except TypeError as error:
        error.add_note(note)
        raise
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"{note} It returned a {type(dataset).__name__}.")
    return dataset


def input_context(strategy: tf.distribute.Strategy) -> tf.distribute.InputContext:
    """Return the argument of a function of `tf.distribute.InputContext` on this worker."""
    seen: list[tf.distribute.InputContext] = []

    def keep(context: tf.distribute.InputContext) -> tf.data.Dataset:
        seen.append(context)
        return tf.data.Dataset.range(1)

    # Strategies without their own input (parameter servers outside a coordinator) have one pipeline.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        strategy.distribute_datasets_from_function(keep)
    return seen[0] if seen else tf.distribute.InputContext(1, 0, strategy.num_replicas_in_sync)
