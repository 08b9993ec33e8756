"""Terms: a letter for each axis of an operation's inputs and outputs, from which shapes, labels and sums are derived.

They are those of `einsum`, for every operation: a letter in an input and an output is an axis that the operation keeps, "1"
an axis of extent 1, and an input without a term is used whole.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..labels import PARTIAL_MEAN, PARTIAL_SUM, REPLICATED, Label, label_sharded, sizes
from ..sizes.size import Extent, Length, Shape, Size, broadcast_extent, quotient, same_extent
from ..sizes.size_arrays import Unknown, product
from .call import Call, Ruling, View, Wants, name_axes, require

SUM = "sum"  # linear in all inputs together
PRODUCT = "product"  # in each input alone
FIRST = "first"  # in the first input


class Terms(NamedTuple):
    """The axes of an operation.

    Attributes:
        inputs: the term of each input; None, or none at the end: the operation needs it whole.
        outputs: the term of each output; None: it is the same on every replica, and has TensorFlow's static shape.
        mixed: the letters of axes along which the operation needs all entries.
        reduced: the label of an output that lacks the axis of the samples; None: the operation mixes them.
        new: the extents of letters that no input has; the others have TensorFlow's static ones.
        sizes: the letters whose extents an input has as numbers, by the number of the input: this replica's are requested.
        cuts: letters of the outputs that are parts of a letter of the inputs, or contain it: that letter, and where one
            begins in the other. Samples stay together in whole blocks.
        join: what the extents of one letter make.
        equal: whether a letter has one extent in all inputs, so that one which is not known has it, too.
        infers: whether static extents are inferred again from what is known here; those that are not are new lengths.
    """

    inputs: Sequence[str | None]
    outputs: Sequence[str | None]
    mixed: str = ""
    reduced: Label | None = None
    new: Mapping[str, Extent] = {}
    sizes: Mapping[int, str] = {}
    cuts: Mapping[str, tuple[str, Extent]] = {}
    join: Callable[[Extent, Extent], Extent] = same_extent
    equal: bool = True
    infers: bool = False


def terms_of_broadcast(call: Call) -> Terms:
    """Return the terms of inputs that are broadcast against each other."""
    shapes = [call.shape(number) for number in range(len(call.values))]
    names = name_axes(max(map(len, shapes), default=0))
    terms = [
        "".join("1" if n == 1 else name for name, n in zip(names[len(names) - len(s) :], s)) for s in shapes
    ]
    return Terms(terms, [names] * call.count, join=broadcast_extent, equal=False)


def find_shapes_of_terms(terms: Terms, call: Call) -> list[Shape]:
    """Return the shapes of the outputs."""
    found: dict[str, Extent] = dict(terms.new)
    for number, term in enumerate(terms.inputs):
        for letter, extent in zip(term or "", call.shape(number) if term else ()):
            found[letter] = terms.join(found[letter], extent) if letter in found else extent
    found["1"] = 1
    shapes: list[Shape] = []
    for number, term in enumerate(terms.outputs):
        if terms.equal and term is not None and not found.keys() >= set(term):
            static = call.static(number, terms.infers)
            if len(static) != len(term):
                raise Unknown
            for letter, extent in zip(term, static):
                is_length = extent is None and terms.infers
                found.setdefault(letter, Size.of(Length()) if is_length else extent)
        shapes.append(None if term is None else [found.get(letter, 1) for letter in term])
    return shapes


def label_terms(view: View, terms: Terms, row: Any) -> Ruling:
    """Label an operation by its terms: along the axis of the samples of one input, or as parts of a sum or an extreme.

    The operation's `row` says which of these it keeps.
    """
    inputs = [*terms.inputs, *[None] * (len(view.labels) - len(terms.inputs))]
    at = {
        number: term[label.axis]
        for number, (term, label) in enumerate(zip(inputs, view.labels))
        if term is not None and label.is_sharded and term[label.axis] not in terms.mixed + "1"
    }
    if not at:
        filled = label_filled(view, terms) if row.fills else None
        return filled or _label_parts(view, [n for n, term in enumerate(inputs) if term is not None], row)
    made_axes = "".join(term or "" for term in terms.outputs)
    first = min(at, key=lambda n: (view.values[n].free, at[n] not in made_axes, made_axes.find(at[n]), n))
    letter, lead = at[first], view.labels[first]
    wants = view.align(lead, {n: (term or "").find(letter) for n, term in enumerate(inputs)}, terms.equal)
    letters = letter + "".join(part for part, (whole, _) in terms.cuts.items() if whole == letter)
    for number, term in terms.sizes.items():
        if (at_size := _find_any(term, letters)) >= 0:
            wants[number] = sizes(at_size, lead.chosen)
            if lead.chosen and view.labels[number] != wants[number]:
                raise Unknown
    made = []
    for number, term in enumerate(terms.outputs):
        axis = _find_any(term or "", letters)
        label = lead._replace(axis=axis) if axis >= 0 else terms.reduced if term is not None else REPLICATED
        if term is not None and axis >= 0 and term[axis] != letter:
            extents = view.shape(first)[lead.axis], view.out_shape(number)[axis]
            label = lead._replace(axis=axis, blocks=_count_blocks(lead, *extents, terms.cuts[term[axis]][1]))
        made.append(require(None if label == PARTIAL_MEAN and lead.chosen else label))
    return wants, made


def _find_any(term: str, letters: str) -> int:
    """Return the first axis with one of these letters; -1: there is none."""
    return next((axis for axis, letter in enumerate(term) if letter in letters), -1)


def _count_blocks(label: Label, extent: Extent, other: Extent, start: Extent) -> int:
    """Return the blocks of an axis of which another one is a part, or which is a part of it; none may be cut through."""
    count, before = (quotient(product([each, label.blocks]), extent) for each in (other, start))
    if not count or not isinstance(count, int) or not isinstance(before, int):
        raise Unknown
    return require(None if label.chosen and count != label.blocks else count)


def label_filled(view: View, terms: Terms) -> Ruling | None:
    """Label what whole inputs and a shape fill: each replica makes the part of its samples."""
    ((number, term),) = terms.sizes.items()
    have, wants = view.labels[number], Wants([REPLICATED] * len(view.labels))
    chosen = have.chosen if have.is_sizes else None
    axis = have.axis if chosen else view.samples_axis()
    if axis is None or terms.outputs[0] is None or terms.outputs[0][axis] not in term:
        return None
    letter = terms.outputs[0][axis]
    if any(letter in each for each in terms.inputs if each is not None):
        return None
    wants[number] = None if chosen else sizes(term.index(letter))
    return wants, [label_sharded(axis, chosen=chosen)] * view.count


def _label_parts(view: View, every: Sequence[int], row: Any) -> Ruling:
    """Label an operation none of whose inputs, those of these numbers, is SHARDED."""
    labels = view.labels
    for label in row.keeps:
        if label in labels and all(labels[number] in (label, REPLICATED) for number in every):
            return [label if n in every else REPLICATED for n in range(len(labels))], [label] * view.count
    sums = [number for number in every if labels[number] == PARTIAL_SUM and number not in row.fixed]
    if row.linear is None or not sums or (row.linear == FIRST and sums[0] != every[0]):
        raise Unknown
    if row.linear != SUM and not all(row.scales(view.values[n]) for n in every if n != sums[0]):
        raise Unknown
    kept = [number for number in every if number not in row.fixed] if row.linear == SUM else sums[:1]
    return [PARTIAL_SUM if n in kept else REPLICATED for n in range(len(labels))], [PARTIAL_SUM] * view.count
