"""Lists of tensors, which loops stack for their backward pass.

Shape and label of a list are those of its elements, stacked along a first axis.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..labels import EMPTY, OPEN, REPLICATED, Label, sizes
from ..sizes.size import Extent, Shape, is_open
from ..sizes.size_arrays import Unknown, extents_of, merge_shapes, of_one_sample
from .call import Call, Ruling, Shapes, View, Wants
from .number_rules import keep_list_elements
from .row import add_rows


def _add(types: str, inputs: str, outputs: str, **fields: Any) -> None:
    """Add rows of operations on lists, with a word for each input and output.

    A "*" stands for the axes of an element. A letter before it is another axis: "a" is that of a list, and "+" has one entry
    more. A "#" stands for the shape of an element, and "-" for all else.
    """
    words, made = inputs.split(), outputs.split()
    begins = {number: len(word) - 1 for number, word in enumerate(words) if word.endswith("*")}

    def label(view: View) -> Ruling:
        if len(view.labels) > len(words) or view.count > len(made):
            return view.gather()
        wants: Wants = [None if number in begins else REPLICATED for number in range(len(view.labels))]
        lead = next((number for number in begins if view.labels[number] != EMPTY), None)
        if lead is None:
            lists = [tensor.dtype == tf.variant for tensor in view.op.outputs]
            return wants, [EMPTY if is_list else REPLICATED for is_list in lists]
        element = _move(view.labels[lead], -begins[lead])
        if element.is_sharded and element.axis < 0:
            return view.gather()
        for number, word in enumerate(words):
            if number in begins and view.labels[number] != EMPTY:
                wants[number] = _move(element, begins[number])
            elif word.endswith("#") and element.is_sharded and view.rank(number) == 1:
                axis = element.axis + len(word) - 1
                known = not element.chosen and of_one_sample(view.values[number].constant, axis)
                wants[number] = sizes(axis) if known else _open(axis)
        return wants, [_move(element, len(word) - 1) if "*" in word else REPLICATED for word in made]

    def find_shapes(call: Call) -> Shapes:
        element = _merge_elements(call, begins)
        if element is None:
            return []
        known: dict[str, Extent] = {}
        for word, value in zip(words, call.values):
            known.update(zip("" if "#" in word else word.strip("*"), value.shape or ()))
        if "resize_if_index_out_of_bounds" in call.op.node_def.attr and call.attr(
            "resize_if_index_out_of_bounds"
        ):
            known.pop("a", None)
        known["+"] = None if known.get("a") is None else known["a"] + 1  # type: ignore[operator]
        return [[*map(known.get, word[:-1]), *element] if "*" in word else None for word in made]

    add_rows(types, **{"label": label, "shape": find_shapes, **fields})


def _merge_elements(call: Call, begins: Mapping[int, int]) -> Shape:
    """Return the shape of elements, without the extents in which inputs differ; axes of each begin after some others."""
    held = [(value.shape, begin) for value, begin in zip(call.values, map(begins.get, range(len(call.values))))
            if begin is not None and value.label != EMPTY]  # fmt: skip
    first, *others = [None if shape is None else shape[begin:] for shape, begin in held] or [None]
    for other in others:
        first = merge_shapes(first, other)
    return first


def _move(label: Label, count: int) -> Label:
    """Return the label of elements after so many more axes."""
    if label.is_sharded:
        return label._replace(axis=label.axis + count)
    if label.counts_values:
        raise Unknown
    return REPLICATED if label.is_sizes else label


def _open(axis: int) -> Label:
    """Requested for the shape of the elements of a list: each replica has its own extent of this axis."""
    return sizes(axis, chosen=OPEN)


def _hold(number: int) -> Any:
    """Return the constant of all elements after the input of this number was put into a list; None: there is none."""

    def find_elements(call: Call) -> Any:
        held, constant = call.values[0], call.values[number].constant
        alike = held.label == EMPTY or (held.elements is not None and np.array_equal(held.elements, constant))  # type: ignore[arg-type]
        return constant if alike else None

    return find_elements


def _label_new(view: View) -> Ruling:
    extents = view.values[0].constant
    varying = [] if extents is None else [n for n, extent in enumerate(extents.ravel()) if is_open(extent)]
    return [*map(_open, varying[:1]), *[None] * (len(view.labels) - len(varying[:1]))], [EMPTY]


def _label_element_shape(view: View) -> Ruling:
    """Label the shape of elements, which has this replica's extent of a sharded axis, or -1."""
    label = view.labels[0]
    return [None], [_open(label.axis - 1) if label.is_sharded and label.axis else REPLICATED]


def _find_new(call: Call) -> Shapes:
    length = 0 if call.type == "EmptyTensorList" else call.item(1)
    return [[length, *(extents_of(call.values[0].constant) or ())]]


add_rows("TensorListReserve EmptyTensorList", label=_label_new, shape=_find_new, fills=True)
add_rows("OptionalNone", label=lambda view: ([], [EMPTY]), fills=True, harmless=True)
_add("OptionalFromValue OptionalGetValue", "*", "*", harmless=True)
_add("TensorListFromTensor", "a* #", "a*")
_add("TensorListScatterV2", "b* - # -", "a*")
_add("TensorListSplit", "b* d# -", "ad*")
_add("TensorListPushBack", "a* *", "+*", elements=_hold(1))
_add("TensorListSetItem", "a* - *", "a*", elements=_hold(2))
_add("TensorListScatterIntoExistingList", "a* b* -", "c*")
_popped: Any = {"numbers": lambda call, number: call.values[0].elements, "elements": keep_list_elements}
_add("TensorListPopBack", "a* #", "c* *", **_popped)
_add("TensorListGetItem", "a* - #", "*")
_add("TensorListStack", "a* #", "a*")
_add("TensorListGather", "a* i #", "i*")
_add("TensorListResize", "a* -", "c*", elements=keep_list_elements)
_add("TensorListLength", "a*", "-")
add_rows("TensorListElementShape", label=_label_element_shape)
_add("TensorListConcatV2", "ad* d# -", "e* -")
