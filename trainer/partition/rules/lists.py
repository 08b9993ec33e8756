"""Lists of tensors, which loops stack for their backward pass: the label of a list is that of its elements."""

from __future__ import annotations

from ..labels import REPLICATED, Label, is_sharded
from .view import Ruling, View, Wants, rule

EMPTY = Label("empty list")


@rule("TensorListReserve", "EmptyTensorList")
def _new(view: View) -> Ruling:
    return [None] * len(view.labels), [EMPTY]


@rule("OptionalNone")
def _none(view: View) -> Ruling:
    return [], [EMPTY]


@rule("OptionalFromValue", "OptionalGetValue")
def _optional(view: View) -> Ruling:
    if len(view.labels) > 1 or len(view.op.outputs) > 1:
        return view.gathered()
    label = REPLICATED if view.labels[0].kind == "sizes" else view.labels[0]._replace(counts=False)
    return [None if label == view.labels[0] else label], [label]


@rule("TensorListFromTensor")
def _from_tensor(view: View) -> Ruling:
    label = view.labels[0]
    if is_sharded(label):
        if label.axis == 0:
            return view.gathered()
        return [None, None], [label._replace(axis=label.axis - 1)]
    return [None, None], [label]


@rule("TensorListSetItem", "TensorListPushBack")
def _put(view: View) -> Ruling:
    item = 1 if view.type == "TensorListPushBack" else 2
    held, label = view.labels[0], view.labels[item]
    goal = label._replace(counts=False) if held == EMPTY else held
    if goal.kind == "sizes":
        goal = REPLICATED
    wants: Wants = [None] * len(view.labels)
    wants[item] = goal
    return wants, [goal]


@rule("TensorListPopBack", "TensorListGetItem", "TensorListStack", "TensorListResize", "TensorListLength",
      "TensorListElementShape", "TensorListConcatV2")  # fmt: skip
def _take(view: View) -> Ruling:
    held, wants = view.labels[0], [None] * len(view.labels)
    element = REPLICATED if held == EMPTY else held
    if view.type == "TensorListPopBack":
        return list(wants), [held, element]
    if view.type == "TensorListGetItem":
        return list(wants), [element]
    if view.type == "TensorListStack":
        return list(wants), [element._replace(axis=element.axis + 1) if is_sharded(element) else element]
    if view.type == "TensorListResize":
        return list(wants), [held]
    return list(wants), [REPLICATED]
