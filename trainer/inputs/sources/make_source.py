"""Converts any input that Keras accepts to a `Source`: what is read (`GivenData`), and how (`Reading`)."""

import contextlib
import dataclasses
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ....compat.tensorflow_private.tf_data import find_parts
from ....distribute.arguments import show, takes_arguments
from ....distribute.hardware.data_placement import data_home
from ....distribute.replicas import shares_variables
from .. import input_checks
from ..batch import concat_samples, is_memory_mapped
from ..class_weights import check_class_weight, class_weights, weight_spec
from ..convert import resident_size
from ..digests import digest_of
from ..given_data import DISTRIBUTED, FUNCTION, GivenData, Reading
from ..position import SampleOrder
from ..same_input import check_same_input, is_unsharded
from .arrays import ArraySource, StreamedArrays
from .dataset_source import DatasetSource, Elements, without_optionals
from .python_inputs import PyDatasetSource, StreamSource
from .source import Source


def make_source(data: GivenData, how: Reading) -> Source:
    """Make the source of global batches for a call of `fit`, `evaluate` or `predict`.

    Unsupported values and types raise a ValueError or TypeError here, before the first step.
    """
    weights = class_weights(how.class_weight)
    data = data.limit_steps()
    if data.kind == "Keras data adapter":
        data = dataclasses.replace(data, x=data.x.get_tf_dataset())
    check_same_input(data.x, how.strategy, data.kind, how.call)
    if data.has_arrays:
        source = _from_arrays(data, how)
    else:
        data.check_alone()
        if how.shuffle == "batch":  # True is the default of `fit`, not a request
            warnings.warn(
                f"`shuffle={how.shuffle}` was passed, but will be ignored since the data `x` was provided as a {data.kind}, "
                "which is expected to already be shuffled.",
                stacklevel=3,
            )
        if data.kind == "PyDataset":
            source = PyDatasetSource(data, how)
        elif data.kind in ("generator", "iterable", "torch DataLoader"):
            source = StreamSource(data, how)
        else:
            source = DatasetSource(_elements_of(data, how), data.steps, how.resumable)
    if weights is not None:
        check_class_weight(source.spec, how.class_weight)
        source.class_weights, source.spec = weights, weight_spec(source.spec)
    return source


def _from_arrays(data: GivenData, how: Reading) -> Source:
    arrays = data.arrays
    order = SampleOrder(data.samples, data.samples_of_batch, how.shuffle, how.seed, data.steps)
    strategy, other = how.strategy, how.other
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
    if mapped or (size > how.resident_bytes and not home.devices):
        source: Source = StreamedArrays(batch, order, how.several_workers)
        source.home = home.sentence
    else:
        source = ArraySource(batch, order, home, other)
        if how.several_workers:
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


def _elements_of(data: GivenData, how: Reading) -> Elements:
    """Return the elements of a `tf.data` pipeline, and how this worker makes batches of them."""
    x, parts, per_worker, batches, strategy = data.x, 1, False, None, how.strategy
    if data.kind == FUNCTION:
        context = input_context(strategy)
        x = _call_with(context, x)
        parts = max(1, strategy.num_replicas_in_sync // context.num_input_pipelines)
        per_worker = context.num_input_pipelines > 1
    compared = (
        how.several_workers and data.kind != DISTRIBUTED and (not per_worker or is_unsharded(x, strategy))
    )
    if data.kind == DISTRIBUTED:
        datasets, replicas, batches = find_parts(x)
        per_worker = how.several_workers
        parts = max(1, replicas // input_context(strategy).num_input_pipelines)
        x = datasets[0]
        if len(datasets) > 1:  # one for each replica
            x, parts = tf.data.Dataset.zip(*datasets).map(lambda *each: concat_samples(each)), 1
    x = without_optionals(x)
    input_checks.check_batched(x.element_spec, parts, how.sharing)
    return Elements(x, parts, per_worker, data.kind in (FUNCTION, DISTRIBUTED), batches, compared)


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
