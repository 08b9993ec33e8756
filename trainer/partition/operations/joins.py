"""Concatenations, splits, paddings."""

from typing import Any

import numpy as np

from ..conversions import times_ratio
from ..labels import REPLICATED, Joined, Ragged, label_sharded
from ..sizes.positions import put_in_column
from ..sizes.size import Extent, quotient
from ..sizes.size_arrays import as_sizes
from .call import Call, ReplicaCall, Ruling, View, name_axes
from .number_rules import move_elements, numbers_of
from .row import add_rows
from .terms import SUM, Terms


def _sum_extents(*extents: Extent) -> Extent:
    return None if None in extents else sum(extents)  # type: ignore[arg-type]


def _find_padded(call: Call) -> Terms:
    """Return the terms of a padding: the axes that it pads are mixed, and new."""
    names, more = call.names(), call.constant(1).tolist()
    others, sign = name_axes(len(names), len(names)), -1 if call.type == "MirrorPadGrad" else 1
    padded = [n for n, row in enumerate(more) if row != [0, 0]]
    extents = {
        others[n]: _sum_extents(call.shape()[n], *(None if m is None else sign * m for m in more[n]))
        for n in padded
    }
    out = "".join(others[n] if n in padded else name for n, name in enumerate(names))
    return Terms([names], [out], "".join(names[n] for n in padded), new=extents)


add_rows("Pad", terms=_find_padded, linear=SUM)
add_rows("PadV2 MirrorPad MirrorPadGrad", terms=_find_padded)


def _find_joined(call: Call) -> Terms:
    """Return the terms of a concatenation: parts with equal extents are repetitions of an axis, else it is mixed."""
    count, names = len(call.values) - 1, call.names()
    (axis,), (whole, *others) = call.axes(count), name_axes(count + 1, len(names))
    extents = [call.shape(number)[axis] for number in range(count)]
    alike = all(extent == extents[0] for extent in extents)
    terms = [names[:axis] + (names[axis] if alike else each) + names[axis + 1 :] for each in others]
    cuts = {whole: (names[axis], 0)} if alike else {}
    joined, mixed = names[:axis] + whole + names[axis + 1 :], "" if alike else "".join(others)
    return Terms(terms, [joined], mixed, new={whole: _sum_extents(*extents)}, cuts=cuts)


def _label_joined(view: View) -> Ruling | None:
    """Gather samples that are joined with others: what is the same everywhere is not cut for it."""
    parts, (axis,) = view.labels[:-1], view.axes(len(view.labels) - 1)
    if axis == 0 and len({*parts}) > 1 and any(isinstance(label.chosen, Ragged) for label in parts):
        fits = all(label.is_sharded and label.axis == 0 for label in parts)
        joined = label_sharded(0, chosen=Joined(tuple(parts)))
        return ([None] * len(parts) + [REPLICATED], [joined]) if fits else view.gather()
    along = any(label.is_sharded and label.axis == axis for label in parts)
    return view.gather() if along and any(label != parts[0] for label in parts) else None


_JOIN: Any = {"linear": SUM, "progression": put_in_column}
add_rows("ConcatV2", terms=_find_joined, label=_label_joined, numbers=move_elements(end=-1), **_JOIN)


def _find_packed(call: Call) -> Terms:
    names = call.names()
    at, more = call.attr("axis") % (len(names) + 1), name_axes(1, len(names))
    return Terms([names] * len(call.values), [names[:at] + more + names[at:]], new={more: len(call.values)})


def _label_pack(view: View) -> Ruling | None:
    leads = [label for label in view.labels if label.is_sharded]
    chosen = any(label.chosen for label in leads) and any(label != leads[0] for label in view.labels)
    of_sizes = not leads and view.op.outputs[0].dtype.is_integer
    return view.gather() if chosen or of_sizes else None


add_rows("Pack", terms=_find_packed, label=_label_pack, numbers=move_elements(end=None), **_JOIN)


def _find_unpacked(call: Call) -> Terms:
    names = call.names()
    axis = call.attr("axis") % len(names)
    return Terms([names], [names[:axis] + names[axis + 1 :]] * call.count, names[axis])


add_rows("Unpack", terms=_find_unpacked, moves=0, numbers=move_elements())


def _find_split(call: Call) -> Terms:
    data, where = (1, 0) if call.type == "Split" else (0, 2)
    shape, (axis,) = call.shape(data), call.axes(where, data)
    sizes = [quotient(shape[axis], call.count)] * call.count
    if call.type == "SplitV":
        given = call.constant(1).tolist()
        rest = _sum_extents(*(size for size in given if size != -1))
        rest = None if None in (shape[axis], rest) else shape[axis] - rest  # type: ignore[operator]
        sizes = [rest if size == -1 else size for size in given]
    names, parts = name_axes(len(shape)), name_axes(call.count, len(shape))
    cuts = {part: (names[axis], _sum_extents(*sizes[:number])) for number, part in enumerate(parts)}
    outputs = [names[:axis] + part + names[axis + 1 :] for part in parts]
    return Terms([*[None] * data, names], outputs, new=dict(zip(parts, sizes)), cuts=cuts)


def _label_split(view: View) -> Ruling | None:
    """Gather samples that data has chosen, whose number no replica knows."""
    data, (axis,) = view.labels[0], view.axes(2)
    return view.gather() if data.is_sharded and data.axis == axis and data.chosen else None


def _copy_split(call: ReplicaCall, given: list[Any]) -> list[Any]:
    """Return the parts of this replica's samples: the sizes of parts are those of the batch."""
    for label, place in zip(call.values[0].labels, call.places):
        if label.is_sharded and label.axis == call.axes(2)[0]:  # -1 stays -1
            given[1] = times_ratio(given[1], place.held, place.global_samples)
    return call.make(given)


add_rows("Split", moves=1, terms=_find_split, numbers=move_elements(1, 2))
add_rows("SplitV", moves=0, terms=_find_split, label=_label_split, copy=_copy_split, numbers=move_elements())


def _stitch_numbers(call: Call, number: int) -> np.ndarray:
    half = len(call.values) // 2
    places = np.concatenate([call.fixed(n).ravel() for n in range(half)])
    found = dict(
        zip(places.tolist(), np.concatenate([numbers_of(value).ravel() for value in call.values[half:]]))
    )
    return as_sizes([found[n] for n in range(len(found))])


add_rows("DynamicStitch", numbers=_stitch_numbers)
