"""Terms: a letter for each axis of an operation's inputs and outputs, from which shapes, labels and sums are derived.

They are those of `einsum`, for every operation: a letter in an input and an output is an axis that the operation keeps, "1"
an axis of extent 1, and an input without a term is used whole.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..labels import PARTIAL_MEAN, PARTIAL_SUM, REPLICATED, Label, is_sharded
from ..sizes.size import Extent, Length, Shape, Size, broadcast_extent, same_extent
from ..sizes.size_arrays import Unknown
from .call import Call, Ruling, View, name_axes

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
        join: what the extents of one letter make.
        equal: whether a letter has one extent in all inputs, so that one which is not known has it, too.
        infers: whether static extents are inferred again from what is known here; those that are not are new lengths.
    """

    inputs: Sequence[str | None]
    outputs: Sequence[str | None]
    mixed: str = ""
    reduced: Label | None = None
    new: Mapping[str, Extent] = {}
    join: Callable[[Extent, Extent], Extent] = same_extent
    equal: bool = True
    infers: bool = False


class Linear(NamedTuple):
    """Which parts of sums or extremes an operation keeps.

    Attributes:
        kind: in which inputs it is linear: SUM, PRODUCT or FIRST.
        fixed: numbers of the inputs in which it is not.
        scales: whether another input can scale a partial sum, by its `Value`.
        keeps: the partial maxima and minima that it keeps.
    """

    kind: str | None
    fixed: Sequence[int]
    scales: Callable[[Any], bool]
    keeps: Sequence[Label]


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


def label_terms(view: View, terms: Terms, linear: Linear) -> Ruling:
    """Label an operation by its terms: along the axis of the samples of one input, or as parts of a sum or an extreme."""
    inputs = [*terms.inputs, *[None] * (len(view.labels) - len(terms.inputs))]
    at = {
        number: term[label.axis]
        for number, (term, label) in enumerate(zip(inputs, view.labels))
        if term is not None and is_sharded(label) and term[label.axis] not in terms.mixed + "1"
    }
    if not at:
        return _label_parts(view, [n for n, term in enumerate(inputs) if term is not None], linear)
    made_axes = "".join(term or "" for term in terms.outputs)
    first = min(at, key=lambda n: (view.values[n].free, at[n] not in made_axes, made_axes.find(at[n]), n))
    letter, lead = at[first], view.labels[first]
    axes = {n: -1 if term is None else term.find(letter) for n, term in enumerate(inputs)}
    made = []
    for term in terms.outputs:
        kept = (
            REPLICATED
            if term is None
            else lead._replace(axis=term.index(letter))
            if letter in term
            else terms.reduced
        )
        if kept is None or (kept == PARTIAL_MEAN and lead.chosen):
            raise Unknown
        made.append(kept)
    return view.align(lead, axes, terms.equal), made


def _label_parts(view: View, every: Sequence[int], linear: Linear) -> Ruling:
    """Label an operation none of whose inputs, those of these numbers, is SHARDED."""
    labels = view.labels
    for label in linear.keeps:
        if label in labels and all(labels[number] in (label, REPLICATED) for number in every):
            return [label if n in every else REPLICATED for n in range(len(labels))], [label] * view.count
    sums = [number for number in every if labels[number] == PARTIAL_SUM and number not in linear.fixed]
    if linear.kind is None or not sums or (linear.kind == FIRST and sums[0] != every[0]):
        raise Unknown
    if linear.kind != SUM and not all(linear.scales(view.values[n]) for n in every if n != sums[0]):
        raise Unknown
    kept = [number for number in every if number not in linear.fixed] if linear.kind == SUM else sums[:1]
    return [PARTIAL_SUM if n in kept else REPLICATED for n in range(len(labels))], [PARTIAL_SUM] * view.count
