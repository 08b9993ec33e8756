"""Converts variables to host arrays and back, bit for bit, also where each replica has its own copy."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..compat.keras_private.layers import layers_of
from ..compat.keras_private.variables import is_read_together, raw_value, sums_on_read
from ..distribute.replicas import copies_of
from ..distribute.sharding.sharded_value import ShardedValue
from ..distribute.workers.agreement import spans_workers
from ..optimizers.building import optimizers_of
from .random_state import WITH_VARIABLE, find_reached
from .trained_model import TrainedModel


def copy_into_buffer(buffers: dict[Any, np.ndarray], key: Any, array: np.ndarray) -> np.ndarray:
    """Copy `array` into the buffer of `key`, valid until the next call: allocating costs more than copying."""
    if array.dtype.kind == "O" or array.ndim == 0:
        return np.array(array)
    buffer = buffers.get(key)
    if buffer is None or buffer.shape != array.shape or buffer.dtype != array.dtype:
        buffer = buffers[key] = np.empty_like(array, order="C")
    np.copyto(buffer, array)
    return buffer


def variables_of(model: TrainedModel, metrics: bool = True) -> dict[str, list[Any]]:
    """Return every variable that training can change, each once, in the order in which the script creates them.

    The groups are "model" (weights, other layer state, seed generators), "optimizer" (its state, loss scale, accumulators,
    averages, iterations, learning rate; of each that the model holds), "metrics" (empty unless wanted), and "other"
    (variables and generators that layers hold in custom objects, or in modules of custom functions).
    """
    seen: set[int] = set()

    def new(variables: Iterable[Any]) -> list[Any]:
        result = []
        for variable in variables:
            if id(variable) not in seen:
                seen.update((id(variable), id(raw_value(variable))))
                result.append(variable)
        return result

    return {
        "model": new(model.variables),
        "optimizer": new(v for each in optimizers_of(model) for v in each.variables),
        "metrics": new(model.metrics_variables if metrics else ()),
        "other": new(
            found.state if isinstance(found, WITH_VARIABLE) else found
            for _, found in find_reached(find_held(model), (tf.Variable, keras.Variable, *WITH_VARIABLE))
        ),
    }


def capture(
    variable: Any,
    strategy: tf.distribute.Strategy,
    keep: Callable[[int, np.ndarray], np.ndarray],
    equal: bool = False,
) -> Any:
    """Return the bits of one variable: an array, or `{"copies": [array per local replica]}` where they differ.

    | kind | copies | saved | restored on another number of replicas |
    |---|---|---|---|
    | mirrored (weights, optimizer state) | equal | one copy | that copy everywhere |
    | summed when read (metrics) | parts of a sum | every copy | the sum on the first replica, zero elsewhere |
    | sharded (optimizer state, see `distribute.sharding`) | parts of one array | every shard | the whole array, cut anew |
    | others whose copies differ | as written | every copy | the mean if that is the aggregation, else the first |

    For a sharded variable it is `{"shards": [flat array per local replica]}`, for one divided over a mesh the whole array.
    `keep(copy number, array)` returns an array that does not change while training goes on. Copies are compared, unless they
    are known to be `equal`, as of weights and optimizer state. With several workers, even a single part of a sum is kept as
    a copy.
    """
    value = raw_value(variable)
    if isinstance(value, ShardedValue) and not value.is_flat:
        return keep(0, value.numpy())
    if isinstance(value, ShardedValue):
        return {"shards": [keep(i, _read(shard)) for i, shard in enumerate(value.shards)]}
    copies = copies_of(value)
    own = is_read_together(value)
    if len(copies) > 1 and not own and (equal or len({_read(copy).tobytes() for copy in copies}) == 1):
        copies = copies[:1]
    arrays = [keep(i, _read(copy)) for i, copy in enumerate(copies)]
    several = len(arrays) > 1 or (own and spans_workers(strategy))
    return {"copies": arrays} if several else arrays[0]


def restore(variable: Any, saved: Any, place: tuple[int, int] = (0, 1)) -> None:
    """Write what `capture` returned; the number of replicas may differ, see the table above.

    With several workers `saved` has the copies of all of them, in order; `place` is (this worker's number, how many).
    """
    value = raw_value(variable)
    worker, num_workers = place
    shards: Sequence[np.ndarray] = saved.get("shards", ()) if isinstance(saved, dict) else ()
    if isinstance(value, ShardedValue) and value.is_flat and len(shards) == num_workers * len(value.shards):
        for shard, array in zip(value.shards, shards[worker * len(value.shards) :]):
            shard.assign(array)
        return
    if shards:
        saved = np.concatenate(list(shards))[: math.prod(variable.shape)].reshape(tuple(variable.shape))
    if isinstance(value, ShardedValue):
        value.assign(spread(saved, 1, value, variable)[0])
        return
    copies = copies_of(value)
    arrays = spread(saved, num_workers * len(copies), value, variable)
    for i, copy in enumerate(copies):
        copy.assign(arrays[worker * len(copies) + i])


def spread(saved: Any, num_copies: int, value: Any, variable: Any = None) -> Sequence[np.ndarray]:
    """Return the array for each of `num_copies` copies, from what `capture` returned for any number of them."""
    arrays = saved["copies"] if isinstance(saved, dict) else [saved]
    if len(arrays) == num_copies:
        return arrays
    if sums_on_read(value) or (len(arrays) > 1 and _aggregation(variable, value) == "sum"):
        total: Any = sum(arrays[1:], start=arrays[0])
        return [total] + [np.zeros_like(total)] * (num_copies - 1)
    if len(arrays) > 1 and _aggregation(variable, value) == "mean" and arrays[0].dtype.kind == "f":
        mean: Any = sum(arrays[1:], start=arrays[0]) / len(arrays)
        return [mean.astype(arrays[0].dtype)] * num_copies
    return [arrays[0]] * num_copies


def find_held(model: TrainedModel) -> dict[str, Any]:
    """Return what the layers of a model hold, and its loss, for `find_reached`."""
    return {**held_by(layers_of(model)), "loss": getattr(model, "loss", None)}


def held_by(layers: Iterable[keras.layers.Layer]) -> dict[str, Any]:
    """Return what layers hold, of Keras' classes too, for `find_reached`."""
    return {f"layer {i}": (dict(vars(layer)), layer) for i, layer in enumerate(layers)}


def _read(copy: Any) -> np.ndarray:
    """Return the value, without a copy where the device is the host."""
    return np.asarray(copy.read_value() if hasattr(copy, "read_value") else tf.convert_to_tensor(copy))


def _aggregation(variable: Any, value: Any) -> str:
    name = getattr(variable, "aggregation", None)
    if isinstance(name, str):
        return name
    return getattr(value, "aggregation", tf.VariableAggregation.NONE).name.lower()
