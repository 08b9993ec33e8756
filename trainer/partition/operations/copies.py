"""Operations that keep the elements of their input, or its shape: copies, casts, zeros."""

from typing import Any

import numpy as np
import tensorflow as tf

from ..labels import PARTIAL_SUM, REPLICATED
from ..sizes.bounds import ANY, Interval, bound_by, is_finite
from ..sizes.positions import keep_progression
from ..sizes.size import equal, if_known
from ..sizes.size_arrays import Unknown, as_sizes
from .call import Call, Ruling, View, keep_shape
from .number_rules import keep_list_elements, move_elements, negate, numbers_of
from .row import COMPARES, add_rows, part_by_terms
from .terms import SUM, Terms, terms_of_broadcast
from .value_places import entries_of


def add_elementwise(types: str, **fields: Any) -> None:
    """Add the rows of operations whose inputs are broadcast against each other."""
    add_rows(types, **{"terms": terms_of_broadcast, "reason": COMPARES, **fields})


def label_copy(view: View) -> Ruling | None:
    """Return the label of a copy: parts of a sum, sizes and positions stay what they are."""
    label = view.labels[0]
    passes = view.values[0].dtype == tf.variant or not (label == REPLICATED or label.is_sharded)
    return ([None], [label]) if len(view.labels) == 1 and passes else None


_SAME: Any = {"numbers": move_elements(), "progression": keep_progression}
_SAME |= {"label": label_copy, "moves": 0, "copies": True, "elements": keep_list_elements}
_PASSED: Any = {**_SAME, "keeps_stored": True, "part": part_by_terms}
add_elementwise("Identity", **_PASSED, adds=True)
add_elementwise("StopGradient", **_PASSED)
add_elementwise("PreventGradient Snapshot", **_SAME)


def _label_copies(view: View) -> Ruling:
    whole = [label.is_not_gathered for label in view.labels]
    wants = [REPLICATED if each else None for each in whole]
    return wants, [REPLICATED if each else label for each, label in zip(whole, view.labels)]


add_rows(
    "IdentityN", label=_label_copies, shape=lambda call: [value.shape for value in call.values], linear=SUM
)


def _label_cast(view: View) -> Ruling | None:
    label = view.labels[0]
    source, target = view.op.inputs[0].dtype, view.op.outputs[0].dtype
    if source.is_integer:  # a part of an unsigned difference may be negative, and wrap around
        signed = not source.is_unsigned
        exact = signed and is_finite(view.values[0]) and (target.is_floating or target.is_integer)
    else:
        exact = source.is_floating and target.is_floating and target.size >= source.size
    if label == PARTIAL_SUM:
        return ([None], [label]) if exact else view.gather()
    if label.counts_values or label.is_count:
        return ([None], [label]) if target in (tf.int32, tf.int64) else view.gather()
    if not label.is_sizes:
        return None
    # The sum of what was rounded is not the rounded sum.
    return view.gather() if target == tf.bool or target.size < 4 else ([None], [label])


def _cast_numbers(call: Call, number: int) -> np.ndarray:
    if call.op.inputs[0].dtype not in (tf.int32, tf.int64, tf.bool):
        raise Unknown
    to_bool = call.op.outputs[0].dtype == tf.bool
    cast = (lambda x: negate(equal(x, 0))) if to_bool else if_known(lambda x: x + 0)
    return as_sizes(np.frompyfunc(cast, 1, 1)(numbers_of(call.values[0])))


def _bound_cast(call: Call) -> Interval:
    source, found = call.values[0].dtype, call.values[0].interval
    if source.is_integer and found == ANY:
        return float(source.min), float(source.max)
    makes_integers = call.op.outputs[0].dtype.is_integer and not (source.is_integer or source == tf.bool)
    return ANY if makes_integers else found  # NaN becomes the least integer


_CAST: Any = {
    "label": _label_cast,
    "numbers": _cast_numbers,
    "bounds": _bound_cast,
    "progression": keep_progression,
}
add_elementwise("Cast", **_CAST, linear=SUM, keeps_stored=True, part=part_by_terms)


def _label_ensure_shape(view: View) -> Ruling:
    label = view.labels[0]
    fixes = label.is_sharded and tf.TensorShape(view.attr("shape"))[label.axis] is not None
    return view.gather() if fixes else ([None], [label])


add_rows("EnsureShape", label=_label_ensure_shape, shape=keep_shape(), moves=0)
_LIKE: Any = {"shape": keep_shape(), "of_sizes": True}


def _label_like(view: View) -> Ruling:
    (label,) = view.labels
    label = entries_of(label) if label.is_places else label
    return view.gather() if label.counts_values else ([None], [label if label.is_sharded else REPLICATED])


_LIKE |= {"label": _label_like}
add_rows("ZerosLike", bounds=bound_by(0, 0), **_LIKE)
add_rows("OnesLike", bounds=bound_by(1, 1), **_LIKE)


def _terms_of_equal_sizes(call: Call) -> Terms:
    if call.op.inputs[0].dtype.size != call.op.outputs[0].dtype.size:
        raise Unknown
    return terms_of_broadcast(call)


add_rows("Bitcast", terms=_terms_of_equal_sizes)
