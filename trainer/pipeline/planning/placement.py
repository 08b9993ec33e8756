"""Placement: variables on their stage, operations next to their inputs."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ....compat.keras_private.variables import move_to_device
from ....distribute.sharding.row_sharding import keep_state_on, move_rows, state_devices
from .graph import Stage

_CALLS = {"If", "While", "Case", "PartitionedCall"}
_CALLS |= {"NoOp", "StatelessIf", "StatelessWhile", "StatelessCase", "StatefulPartitionedCall"}
_PASSES = {"ReadVariableOp", "Identity"}


def move_weights(stages: Sequence[Stage], state_is_sharded: bool) -> None:
    """Move the variables of stages to their first devices; later optimizer state follows, or is sharded over the stage."""
    for stage in stages:
        for variable in stage.weights:
            move_to_device(variable, stage.devices[0])
            keep_state_on(variable, stage.devices if state_is_sharded else [])


def move_optimizer_state(optimizer: Any, stages: Sequence[Stage]) -> None:
    """Move state that was built before its weights had a stage (of a loaded optimizer); its names contain the weights'."""
    for stage in stages:
        for weight in stage.weights:
            start = f"{optimizer.name}/{weight.path.replace('/', '_')}_"
            for slot in optimizer.variables:
                if slot.path.startswith(start) and slot.shape == weight.shape:
                    if state_devices(weight):
                        move_rows(slot, weight)
                    else:
                        move_to_device(slot, stage.devices[0])


@contextlib.contextmanager
def follow_inputs() -> Iterator[None]:
    """Place operations without a device, such as an optimizer's, next to their largest input. Context: tracing."""
    if tf.executing_eagerly():
        yield
        return
    with tf.compat.v1.device(_device_of_largest_input):
        yield


def _device_of_largest_input(op: Any) -> str:
    if op.device or op.type in _CALLS:
        return op.device
    best, largest = "", -1.0
    for tensor in op.inputs:
        device = _device_of(tensor)
        if device and tensor.dtype == tf.resource:
            return device
        size = _size(tensor) if device else -1.0
        if size > largest:
            best, largest = device, size
    return best


def _device_of(tensor: Any) -> str:
    """Return the device of a tensor's producer; for a captured tensor or a variable read, the device of its source."""
    while tensor is not None:
        if not tf.is_symbolic_tensor(tensor):
            return tensor.device or ""
        if tensor.op.device:
            return tensor.op.device
        if tensor.op.type in _PASSES:  # TensorFlow reads variables outside all device scopes
            tensor = tensor.op.inputs[0]
            continue
        captures = getattr(tensor.graph, "captures", ()) if tensor.op.type == "Placeholder" else ()
        tensor = next((outer for outer, inner in captures if inner is tensor), None)
    return ""


def _size(tensor: Any) -> float:
    """Return the number of elements, unknown dimensions counted as 64."""
    shape = [None] if tensor.shape.rank is None else tensor.shape
    return float(math.prod(64 if size is None else size for size in shape))
