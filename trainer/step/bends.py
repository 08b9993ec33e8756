"""Operations that bend: on each side of some value a straight line comes out, so that a batch need not show both sides.

A loss that is cut off at a floor, gradients of two tasks that are projected where they conflict: where all rows are on one
side, such a number is joined by the rules of means and sums, and where they are not, it is not. It is told by its graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from ...compat.edges import holds_functions, number_of
from ...compat.pruning import operations_behind

_CUT_OFF = ("Abs", "Sign", "Relu", "Relu6", "LeakyRelu", "ClipByValue")
_LARGEST = ("Max", "Maximum", "Min", "Minimum", "ArgMax", "ArgMin", "TopKV2")
_ROUNDED = ("Ceil", "Floor", "Rint", "Round")
_COMPARED = ("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual")
_CHOSEN = ("IsFinite", "IsInf", "IsNan", "Select", "SelectV2")
_BEND = frozenset([*_CUT_OFF, *_LARGEST, *_ROUNDED, *_COMPARED, *_CHOSEN])


def bends(values: Sequence[tf.Tensor], start: Sequence[tf.Tensor], until: Collection[int] = ()) -> bool:
    """Whether some of `values` are computed by operations that bend, a branch or a loop from any of the tensors `start`.

    What is behind tensors whose ids are in `until` is left out.
    """
    if not start:
        return False
    known, depend = {id(each) for each in start}, set[Any]()
    for op in sorted(operations_behind(values, until), key=number_of):
        if any(id(each) in known or each.op in depend for each in op.inputs):
            if op.type in _BEND or holds_functions(op):
                return True
            depend.add(op)
    return False
