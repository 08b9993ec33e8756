"""Lists of tensors, which loops stack for their backward pass: the label of a list is that of its elements."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..labels import EMPTY, REPLICATED, Label, Labels, is_sharded, sizes
from ..program import Value
from ..sizes.size import Shape, is_open
from ..sizes.size_arrays import Unknown, extents_of, merge_shapes, of_one_sample
from .call import Call, Ruling, Shapes, View, Wants, keep_shape
from .row import add_rows, row_of


def describe_list(call: Call, labels: Labels) -> Value:
    """Return the known properties of the elements of a list after an operation; its shape begins with their number."""
    held, row = _find_held(call), row_of(call.op)
    shape, elements = (None, None) if held is None else (held.shape, held.elements)
    if row.describe is not None:
        shape, elements = row.describe(call)
    elif shape is not None and not (row.keeps_order or row.adds or row.of_sizes):
        shape = [None, *shape[1:]]
    return Value(tf.variant, shape, labels, elements=elements)


def _find_held(call: Call) -> Value | None:
    """Return the list that is the first input."""
    return call.values[0] if call.values and call.values[0].dtype == tf.variant else None


def _describe_put(number: int) -> Any:
    """Return what a list holds after its input of this number was put into it."""

    def describe(call: Call) -> tuple[Shape, Any]:
        held, item = _find_held(call), call.values[number]
        elements = item.constant if _holds_only(held, item.constant) else None
        count, before = (held.shape[0], held.shape[1:]) if held is not None and held.shape else (None, None)
        element = item.shape if held is None or held.label == EMPTY else merge_shapes(before, item.shape)
        pushed = number == 1 and count is not None
        shape = None if element is None else [count + 1 if pushed else count, *element]  # type: ignore[operator]
        return shape, elements

    return describe


def _describe_scatter(call: Call) -> tuple[Shape, Any]:
    held, shape = _find_held(call), call.values[1].shape
    rows = shape and [None, *shape[1:]]
    return rows if held is None or held.label == EMPTY else merge_shapes(held.shape, rows), None


def _describe_rows(*lead: None, kept: int = 1) -> Any:
    """Return what a list holds that an operation makes of a tensor: `lead` stands for its first axes, but for `kept`."""

    def describe(call: Call) -> tuple[Shape, Any]:
        shape = call.values[0].shape
        return shape and [*lead, *shape[kept:]], None

    return describe


def _describe_new(call: Call) -> tuple[Shape, Any]:
    length = 0 if call.type == "EmptyTensorList" else call.item(1)
    return [length, *(extents_of(call.values[0].constant) or ())], None


def _holds_only(held: Value | None, constant: np.ndarray | None) -> bool:
    """Return whether a list only holds one constant."""
    if held is None or held.label == EMPTY or constant is None or held.elements is None:
        return held is not None and held.label == EMPTY
    return np.array_equal(held.elements, constant)


def _label_new(view: View) -> Ruling:
    wants: Wants = [None] * len(view.labels)
    extents = view.values[0].constant
    varying = [] if extents is None else [n for n, extent in enumerate(extents.ravel()) if is_open(extent)]
    if varying:
        wants[0] = _open(varying[0])
    return wants, [EMPTY]


def _open(axis: int) -> Label:
    """Requested for the shape of the elements of a list: each replica has its own extent of this axis."""
    return sizes(axis, chosen="any")


def _describe_optional(call: Call) -> tuple[Shape, Any]:
    return call.values[0].shape if len(call.values) == 1 else None, None


def _label_optional(view: View) -> Ruling:
    if len(view.labels) > 1 or view.count > 1:
        return view.gather()
    label = REPLICATED if view.labels[0].kind == "sizes" else view.labels[0]
    return [None if label == view.labels[0] else label], [label]


def _label_from_tensor(view: View) -> Ruling:
    label = view.labels[0]
    wants: Wants = [REPLICATED] * len(view.labels)
    wants[0] = None
    if not is_sharded(label):
        return wants, [label]
    if label.axis == 0:
        return view.gather()
    axis, shape = (
        label.axis - (view.type != "TensorListSplit"),
        2 if view.type == "TensorListScatterV2" else 1,
    )
    wants[shape] = _open(axis) if view.rank(shape) == 1 else None
    return wants, [label._replace(axis=axis)]


def _label_put(view: View) -> Ruling:
    item = 1 if view.type == "TensorListPushBack" else 2
    held, label = view.labels[0], view.labels[item]
    goal = label if held == EMPTY else held
    if goal.kind == "sizes":
        goal = REPLICATED
    wants: Wants = [None] * len(view.labels)
    wants[item] = goal
    return wants, [goal]


def _label_scatter(view: View) -> Ruling:
    held, label = view.labels[:2]
    if is_sharded(label) and label.axis == 0:
        return view.gather()
    goal = label._replace(axis=label.axis - is_sharded(label)) if held == EMPTY else held
    return [None, goal._replace(axis=goal.axis + is_sharded(goal)), REPLICATED], [goal]


def _element_of(held: Label) -> Label:
    return REPLICATED if held == EMPTY else held


def _stack(held: Label) -> Label:
    element = _element_of(held)
    return element._replace(axis=element.axis + 1) if is_sharded(element) else element


def _take(
    *made: Callable[[Label], Label], shape: Any = None, shaped: bool = True, **fields: Any
) -> dict[str, Any]:
    """Return a row of what is taken from a list, with the labels `made` of its label.

    `shape` is that of the outputs from the list's; with `shaped` the last input is the shape of an element.
    """

    def label(view: View) -> Ruling:
        held, last = view.labels[0], len(view.labels) - 1
        wants: Wants = [None] * len(view.labels)
        if shaped and is_sharded(held) and view.rank(last) == 1:
            known = not held.chosen and of_one_sample(view.values[last].constant, held.axis)
            wants[last] = sizes(held.axis) if known else _open(held.axis)
        return wants, [each(held) for each in made]

    def find_shapes(call: Call) -> Shapes:
        if shape is None or _find_held(call) is None or call.values[0].label == EMPTY:
            raise Unknown
        return shape(call, call.shape())

    return {"label": label, "shape": find_shapes, **fields}


def _label_joined(view: View) -> Ruling:
    label = view.labels[0]
    if is_sharded(label) and label.axis == 0:
        return view.gather()
    has_shape = is_sharded(label) and view.rank(1) == 1
    return [None, _open(label.axis) if has_shape else None, None], [label, REPLICATED]


_NEW: Any = {"label": _label_new, "describe": _describe_new, "fills": True}
_OPTIONAL: Any = {"label": _label_optional, "harmless": True}
add_rows("TensorListReserve EmptyTensorList", **_NEW)
add_rows("OptionalNone", label=lambda view: ([], [EMPTY]), fills=True, harmless=True)
add_rows("OptionalFromValue", **_OPTIONAL, describe=_describe_optional)
add_rows("OptionalGetValue", **_OPTIONAL, shape=keep_shape())
add_rows("TensorListFromTensor", label=_label_from_tensor, describe=_describe_rows(kept=0))
add_rows("TensorListScatterV2", label=_label_from_tensor, describe=_describe_rows(None))
add_rows("TensorListSplit", label=_label_from_tensor, describe=_describe_rows(None, None))
add_rows("TensorListPushBack", label=_label_put, describe=_describe_put(1))
add_rows("TensorListSetItem", label=_label_put, describe=_describe_put(2))
add_rows("TensorListScatterIntoExistingList", label=_label_scatter, describe=_describe_scatter)
_popped = _take(lambda held: held, _element_of, shape=lambda call, shape: [None, shape[1:]])
add_rows("TensorListPopBack", **_popped, numbers=lambda call, number: call.values[0].elements)
add_rows("TensorListGetItem", **_take(_element_of, shape=lambda call, shape: [shape[1:]]))
add_rows("TensorListStack", **_take(_stack, shape=lambda call, shape: [shape]))
add_rows("TensorListGather", **_take(_stack, shape=lambda call, shape: [[*call.shape(1), *shape[1:]]]))
add_rows("TensorListResize", **_take(lambda held: held, shaped=False))
add_rows("TensorListLength TensorListElementShape", **_take(lambda held: REPLICATED, shaped=False))
add_rows("TensorListConcatV2", label=_label_joined, shape=lambda call: [[None, *call.shape()[2:]]])
