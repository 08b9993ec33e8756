"""Where things stand: device names that exist, variables on their stage, operations beside their inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from . import keras_internals
from .graph import Stage

_LOCAL = "localhost"
_CALLS = {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"}
_PASSES = {"ReadVariableOp", "Identity"}
_CALLS |= {"PartitionedCall", "StatefulPartitionedCall", "NoOp"}


def resolve_devices(devices: Sequence[str]) -> list[str]:
    """The full names of devices.

    Args:
        devices: names such as "GPU:0" (of this process) or "/job:worker/task:1/device:GPU:0".

    Returns:
        Names such as "/job:localhost/replica:0/task:0/device:GPU:0", in order.

    Raises:
        ValueError: for one that does not exist, with those that do.
    """
    if isinstance(devices, str) or not devices:
        raise ValueError(f"devices must be a list of at least one device name; received devices={devices!r}")
    existing = [tf.DeviceSpec.from_string(d.name) for d in tf.config.list_logical_devices()]
    return [_resolve(name, existing) for name in devices]


def _resolve(name: Any, existing: list[tf.DeviceSpec]) -> str:
    try:
        wanted = tf.DeviceSpec.from_string(name)
    except (ValueError, AttributeError, TypeError):
        wanted = tf.DeviceSpec()
    for spec in existing:
        same_job = (spec.job or _LOCAL) == (wanted.job or _LOCAL)
        same_task = (spec.task or 0) == (wanted.task or 0)
        index = wanted.device_index or 0
        if same_job and same_task and spec.device_type == wanted.device_type and spec.device_index == index:
            full = spec.replace(job=spec.job or _LOCAL, replica=spec.replica or 0, task=spec.task or 0)
            return full.to_string()
    names = [spec.to_string() for spec in existing]
    raise ValueError(
        f"devices names {name!r}, which does not exist: there are {names}. "
        f"For devices of other processes, start them with `python -m unisono launch --stages K` and connect first"
    )


def move_weights(stages: Sequence[Stage]) -> None:
    """Moves every variable of a stage to the stage's first device. Optimizer slots made later follow them."""
    for stage in stages:
        for variable in stage.weights:
            keras_internals.move_variable(variable, stage.devices[0])


def move_slots(optimizer: Any, stages: Sequence[Stage]) -> None:
    """Moves the slots of an optimizer that was built before its weights had a stage (a loaded one, say).

    Args:
        optimizer: a Keras optimizer. Its slots are known by their names, which are made of the weights'.
        stages: the stages of its model.
    """
    for stage in stages:
        for weight in stage.weights:
            start = f"{optimizer.name}/{weight.path.replace('/', '_')}_"
            for slot in optimizer.variables:
                if slot.path.startswith(start) and slot.shape == weight.shape:
                    keras_internals.move_variable(slot, stage.devices[0])


@contextlib.contextmanager
def follow_inputs() -> Iterator[None]:
    """Places operations without a device of their own beside the largest of their inputs.

    So what an optimizer does with the gradient and the slots of a variable happens on the variable's stage,
    whoever wrote the optimizer. Context: while tracing; in eager mode TensorFlow places operations itself.
    """
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
    """The device of what made a tensor; of a captured tensor or a variable that was read the device of that."""
    while tensor is not None:
        if not tf.is_symbolic_tensor(tensor):
            return tensor.device or ""
        if tensor.op.device:
            return tensor.op.device
        if tensor.op.type in _PASSES:  # TensorFlow reads variables outside of all device scopes
            tensor = tensor.op.inputs[0]
            continue
        captures = getattr(tensor.graph, "captures", ()) if tensor.op.type == "Placeholder" else ()
        tensor = next((outer for outer, inner in captures if inner is tensor), None)
    return ""


def _size(tensor: Any) -> float:
    """The number of elements, unknown dimensions counted as 64."""
    if tensor.shape.rank is None:
        return 64.0
    size = 1.0
    for dimension in tensor.shape:
        size *= 64 if dimension is None else dimension
    return size
