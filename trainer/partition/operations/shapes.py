"""Sizes, and operations that change the shape of a tensor or fill one."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..conversions import find_whole
from ..labels import PARTIAL_SUM, REPLICATED, Label, sizes
from ..program import MeshAxis
from ..sizes.bounds import keep_bounds
from ..sizes.positions import keep_progression
from ..sizes.size import Extent, at_most, is_open, quotient
from ..sizes.size_arrays import Unknown, align, as_sizes, broadcast_axes, extents_of, product
from .call import Call, ReplicaCall, Ruling, Shapes, View, name_axes, require, shape_in
from .number_rules import add, move_elements, numbers_of
from .row import MOST_ELEMENTS, add_rows, ask, part_by_terms
from .shares import decide_gradient_axes
from .terms import PRODUCT, SUM, Terms
from .value_places import entries_of


def _label_sizes(view: View) -> Ruling:
    made = []
    for label in view.labels:
        label = entries_of(label) if label.is_places else label
        if label.is_offsets and label.chosen.of and view.type != "Rank":
            made.append(label._replace(kind="count"))
        elif not label.is_sharded or view.type == "Rank":
            made.append(REPLICATED)
        elif view.type == "Size":
            made.append(PARTIAL_SUM if label.chosen else sizes(0))
        else:
            made.append(sizes(label.axis, label.chosen))
    return [None] * len(view.labels), made


def _shape_numbers(call: Call, number: int) -> np.ndarray:
    shape = call.shape(number)
    found: Any = len(shape) if call.type == "Rank" else product(shape) if call.type == "Size" else shape
    return as_sizes(found)


def _copy_sizes(call: ReplicaCall, given: list[Any]) -> list[Any]:
    """Return the sizes; of offsets, which have no axis that is divided, those of one device."""
    found = [*call.make(given)]
    for number, label in enumerate(value.label for value in call.values):
        if label.is_offsets and not label.chosen.of:
            found[number] = find_whole(found[number] - 1, call.places[0]) + 1
    return found


_SIZES: Any = {"label": _label_sizes, "numbers": _shape_numbers, "of_sizes": True, "copy": _copy_sizes}
add_rows(
    "Shape ShapeN",
    shape=lambda call: [[None if value.shape is None else len(value.shape)] for value in call.values],
    **_SIZES,
)
add_rows("Size Rank", **_SIZES)


def _reshape_label(label: Label, old: list[Extent], new: list[Extent], mesh: MeshAxis) -> Label:
    """Return the label of a SHARDED tensor after a reshape; raise `Unknown` where its samples do not stay together."""
    if not label.chosen and None not in old and None not in new:
        outer: Extent = 1
        for axis, extent in enumerate(new):
            blocks = quotient(product([label.blocks, *old[: label.axis]]), outer)
            if isinstance(blocks, int) and blocks and mesh.divides(extent, blocks):
                return label._replace(axis=axis, blocks=blocks)
            outer = product([outer, extent])
        raise Unknown
    if label.axis != 0 or not new or label.blocks > 1:
        raise Unknown
    if not label.chosen:
        stays = mesh.divides(new[0])
    elif any(map(is_open, new[1:])):
        stays = None not in new[1:] and old[1:] == new[1:]
    else:
        inner = product(extent for extent in old[1:] if not is_open(extent))
        stays = quotient(inner, product(new[1:]) or 1) is not None
    return label if stays else require(None)


def _label_reshape(view: View) -> Ruling:
    label = view.samples()
    found = _reshape_label(label, view.shape(), view.out_shape(), view.mesh)
    return [None, sizes(found.axis, found.chosen)], [found]


def _find_reshaped(call: Call) -> Shapes:
    shape, found = call.values[0].shape, call.constant(1).tolist()
    if -1 in found and shape is not None:
        rest = product(extent for extent in found if extent != -1)
        found[found.index(-1)] = quotient(product(shape), rest) if rest != 0 else None
    return [[None if extent == -1 else extent for extent in found]]


def _has_shape(call: Call) -> bool:
    """Return whether a reshape is to the shape that its input has; backward passes have many."""
    shape = call.values[0].shape
    same = shape is not None and None not in shape and shape == extents_of(call.values[1].constant)
    if same:
        call.op.inputs[0].set_shape(call.op.outputs[0].shape)
    return same


_KEEPS: Any = {"moves": 0, "numbers": move_elements(), "progression": keep_progression}
add_rows(
    "Reshape",
    label=_label_reshape,
    shape=_find_reshaped,
    unchanged=_has_shape,
    part=lambda call, output, want, mesh: [
        _reshape_label(want, output.shape, call.shape(), mesh),
        sizes(want.axis),
    ],
    **_KEEPS,
)


def _find_expanded(call: Call) -> Terms:
    names = call.names()
    place = int(call.fixed(1).ravel()[0]) % (len(names) + 1)
    return Terms([names], [names[:place] + "1" + names[place:]])


add_rows("ExpandDims", terms=_find_expanded, **_KEEPS)


def _find_dropped(call: Call) -> list[int]:
    """Return the axes that a `Squeeze` drops; without a list of them, it must be known for every batch which are 1."""
    shape = call.shape()
    dims = [dim % len(shape) for dim in call.attr("squeeze_dims")]
    if not dims and not all(isinstance(extent, int) or at_most(2, extent) for extent in shape):
        raise Unknown
    return dims or [axis for axis, extent in enumerate(shape) if extent == 1]


def _find_squeezed(call: Call) -> Terms:
    dropped = _find_dropped(call)
    term = "".join("1" if axis in dropped else name for axis, name in enumerate(call.names()))
    return Terms([term], [term.replace("1", "")])


add_rows(
    "Squeeze",
    terms=_find_squeezed,  # the same axes are dropped: one of one sample on this replica stays
    copy=lambda call, given: call.make(given, squeeze_dims=ask(_find_dropped, call) or []),
    **_KEEPS,
)


add_rows(
    "Transpose",
    terms=lambda call: Terms([call.names()], ["".join(call.names()[axis] for axis in call.axes(1))]),
    numbers=move_elements(),
    moves=0,
)


def _find_tiled(call: Call) -> Terms:
    """Return the terms of repetitions; axes with one entry are filled."""
    shape, given = call.shape(), call.values[1].constant
    counts = [None] * len(shape) if given is None else given.tolist()
    names, more = name_axes(len(shape)), name_axes(len(shape), len(shape))
    repeated = [n for n, (extent, count) in enumerate(zip(shape, counts)) if extent == 1 or count != 1]
    extents = {more[n]: product([shape[n], counts[n]]) for n in repeated}
    return Terms(
        ["".join("1" if n == 1 else name for name, n in zip(names, shape))],
        ["".join(more[n] if n in repeated else name for n, name in enumerate(names))],
        new={} if given is None else extents,
        sizes={1: "".join(name if n == 1 else "-" for name, n in zip(more, shape))},
        cuts={more[n]: (names[n], 0) for n in repeated if shape[n] != 1},
    )


def find_filled(shape: int, data: int | None = None) -> Callable[[Call], Terms]:
    """Return the terms of an operation whose output has the shape in an input; another one is broadcast to it."""

    def find_terms(call: Call) -> Terms:
        (rank,) = call.shape(shape)
        names = name_axes(require(rank if isinstance(rank, int) else None))
        given = [] if data is None else call.shape(data)
        kept = zip(names[len(names) - len(given) :], given)
        inputs: list[str | None] = [None] * len(call.values)
        if data is not None:
            inputs[data] = "".join("1" if n == 1 else name for name, n in kept)
        return Terms(inputs, [names], sizes={shape: names})

    return find_terms


def _fill_numbers(call: Call, number: int) -> np.ndarray:
    extents = call.fixed(0)
    if np.prod(extents) > MOST_ELEMENTS:
        raise Unknown
    return as_sizes(np.full(extents, numbers_of(call.values[1]).item()))


_FILLS: Any = {"fills": True, "bounds": keep_bounds(), "linear": SUM}
_broadcast, _filled = find_filled(1, 0), find_filled(0, 1)
add_rows("Tile", terms=_find_tiled, part=part_by_terms, passes=[PARTIAL_SUM], **_FILLS)
add_rows("BroadcastTo", terms=_broadcast, shape=shape_in(1), part=part_by_terms, **_FILLS)
_FILL: Any = {
    "numbers": _fill_numbers,
    "bounds": keep_bounds(1),
    "linear": PRODUCT,
}  # the sum of one number is cheaper
add_rows("Fill", terms=_filled, shape=shape_in(0), fills=True, **_FILL)
add_rows("Empty", shape=shape_in(0), harmless=True)


def _gradient_axes(call: Call, number: int) -> np.ndarray:
    sums = [pair[number] for pair in broadcast_axes([numbers_of(value).tolist() for value in call.values])]
    if None in sums:
        raise Unknown
    return as_sizes([axis for axis, is_summed in enumerate(sums) if is_summed])


def _find_sums(call: Call, number: int) -> tuple[bool | None, ...]:
    """Return for each axis of a broadcast gradient whether it is summed, where plain integers decide it."""
    shapes = [call.constant(0), call.constant(1)]
    sums = zip(align(shapes), broadcast_axes(shapes))
    return tuple(None if any(map(is_open, extents)) else pair[number] for extents, pair in sums)


add_rows("BroadcastGradientArgs", numbers=_gradient_axes, sums=_find_sums, rewrite=decide_gradient_axes)


def _offset_numbers(call: Call, number: int) -> np.ndarray:
    axis = int(call.fixed(0))
    found = as_sizes(np.zeros(numbers_of(call.values[1]).shape, int).tolist())
    for value in call.values[1 : number + 1]:
        found[axis] = add(found[axis], numbers_of(value)[axis])
    return found


add_rows("ConcatOffset", numbers=_offset_numbers)
