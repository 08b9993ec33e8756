"""Lists of tensors, which loops stack for their backward pass: the label of a list is that of its elements."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ..labels import REPLICATED, Label, Labels, is_sharded, sizes
from ..program import Value, of_one_sample
from ..sizes.size import is_open
from ..sizes.size_arrays import extents_of, merge_shapes
from .view import Ruling, View, Wants, rule

EMPTY = Label("empty list")


def describe_list(op: tf.Operation, inputs: Sequence[Value], labels: Labels) -> Value:
    """Return the known properties of the elements of a list after an operation; its shape begins with their number."""
    held = inputs[0] if inputs and inputs[0].dtype == tf.variant else None
    shape, elements = (None, None) if held is None else (held.shape, held.elements)
    if op.type in ("TensorListSetItem", "TensorListPushBack"):
        item = inputs[1 if op.type == "TensorListPushBack" else 2]
        elements = item.constant if _holds_only(held, item.constant) else None
        count, before = (shape[0], shape[1:]) if shape else (None, None)
        element = item.shape if held is None or held.label == EMPTY else merge_shapes(before, item.shape)
        pushed = op.type == "TensorListPushBack" and count is not None
        shape = None if element is None else [count + 1 if pushed else count, *element]  # type: ignore[operator]
    elif op.type == "TensorListScatterIntoExistingList":
        rows = inputs[1].shape and [None, *inputs[1].shape[1:]]
        shape, elements = rows if held is None or held.label == EMPTY else merge_shapes(shape, rows), None
    elif op.type in _FROM_TENSOR:
        shape = inputs[0].shape
        if shape and op.type != "TensorListFromTensor":
            shape = [None, *shape[1:]] if op.type == "TensorListScatterV2" else [None, None, *shape[1:]]
    elif op.type == "OptionalFromValue":
        shape = inputs[0].shape if len(inputs) == 1 else None
    elif op.type in ("TensorListReserve", "EmptyTensorList"):
        element, count = extents_of(inputs[0].constant), inputs[1].constant
        length = 0 if op.type == "EmptyTensorList" else None if count is None else count.item()
        shape = [length, *(element or ())]
    elif shape is not None and op.type not in ("Identity", "ZerosLike", "AddN"):
        shape = [None, *shape[1:]]
    return Value(tf.variant, shape, labels, elements=elements)


def _holds_only(held: Value | None, constant: np.ndarray | None) -> bool:
    """Return whether a list only holds one constant."""
    if held is None or held.label == EMPTY or constant is None or held.elements is None:
        return held is not None and held.label == EMPTY
    return np.array_equal(held.elements, constant)


@rule("TensorListReserve", "EmptyTensorList")
def _new(view: View) -> Ruling:
    wants: Wants = [None] * len(view.labels)
    extents = view.values[0].constant
    varying = [] if extents is None else [n for n, extent in enumerate(extents.ravel()) if is_open(extent)]
    if varying:
        wants[0] = _open(varying[0])
    return wants, [EMPTY]


def _open(axis: int) -> Label:
    """Requested for the shape of the elements of a list: each replica has its own extent of this axis."""
    return sizes(axis, chosen="any")


@rule("OptionalNone")
def _none(view: View) -> Ruling:
    return [], [EMPTY]


@rule("OptionalFromValue", "OptionalGetValue")
def _optional(view: View) -> Ruling:
    if len(view.labels) > 1 or len(view.op.outputs) > 1:
        return view.gather()
    label = REPLICATED if view.labels[0].kind == "sizes" else view.labels[0]._replace(counts=None)
    return [None if label == view.labels[0] else label], [label]


_FROM_TENSOR = {"TensorListFromTensor": 1, "TensorListScatterV2": 2, "TensorListSplit": 1}
"""The number of the input that is the shape of an element."""


@rule(*_FROM_TENSOR)
def _from_tensor(view: View) -> Ruling:
    label = view.labels[0]
    wants: Wants = [REPLICATED] * len(view.labels)
    wants[0] = None
    if not is_sharded(label):
        return wants, [label]
    if label.axis == 0 or label.counts:
        return view.gather()
    axis = label.axis - (view.type != "TensorListSplit")
    shape = _FROM_TENSOR[view.type]
    wants[shape] = _open(axis) if view.rank(shape) == 1 else None
    return wants, [label._replace(axis=axis)]


@rule("TensorListSetItem", "TensorListPushBack")
def _put(view: View) -> Ruling:
    item = 1 if view.type == "TensorListPushBack" else 2
    held, label = view.labels[0], view.labels[item]
    goal = label._replace(counts=None) if held == EMPTY else held
    if goal.kind == "sizes":
        goal = REPLICATED
    wants: Wants = [None] * len(view.labels)
    wants[item] = goal
    return wants, [goal]


@rule("TensorListScatterIntoExistingList")
def _scatter(view: View) -> Ruling:
    held, label = view.labels[:2]
    if is_sharded(label) and (label.axis == 0 or label.counts):
        return view.gather()
    goal = label._replace(axis=label.axis - is_sharded(label)) if held == EMPTY else held
    return [None, goal._replace(axis=goal.axis + is_sharded(goal)), REPLICATED], [goal]


_SHAPED = (
    "TensorListPopBack",
    "TensorListGetItem",
    "TensorListStack",
    "TensorListGather",
)  # the last input: an element's shape


@rule(*_SHAPED, "TensorListResize", "TensorListLength", "TensorListElementShape")
def _take(view: View) -> Ruling:
    held, last = view.labels[0], len(view.labels) - 1
    wants: Wants = [None] * len(view.labels)
    element = REPLICATED if held == EMPTY else held
    if is_sharded(element) and view.type in _SHAPED and view.rank(last) == 1:
        known = not element.chosen and of_one_sample(view.values[last].constant, element.axis)
        wants[last] = sizes(element.axis) if known else _open(element.axis)
    made = {
        "TensorListPopBack": [held, element],
        "TensorListGetItem": [element],
        "TensorListResize": [held],
    }
    stacked = element._replace(axis=element.axis + 1) if is_sharded(element) else element
    made |= {kind: [stacked] for kind in ("TensorListStack", "TensorListGather")}
    return wants, made.get(view.type, [REPLICATED])


@rule("TensorListConcatV2")
def _join(view: View) -> Ruling:
    label = view.labels[0]
    if is_sharded(label) and label.axis == 0:
        return view.gather()
    has_shape = is_sharded(label) and view.rank(1) == 1
    return [None, _open(label.axis) if has_shape else None, None], [label, REPLICATED]
