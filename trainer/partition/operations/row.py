"""The table of operations: one row says all that the partition knows of one type."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from ....compat.tensorflow_graphs.named_calls import kind_of
from ..labels import PARTIAL_MAX, PARTIAL_MIN, PARTIAL_SUM, Label, Labels, sizes
from ..program import MeshAxis, Value
from ..sizes.bounds import ANY, Interval, bounds_of_sizes, is_finite, is_not_zero, limits_of, round_outwards
from ..sizes.positions import Progression
from ..sizes.size import Shape, Size
from ..sizes.size_arrays import Unknown
from .call import Call, ReplicaCall, Ruling, Shapes, View, Wants, require
from .terms import SUM, Terms, find_shapes_of_terms, label_terms

COMPARES, ORDERS = "samples are compared with each other", "samples are put in order"
_PARTIAL = (PARTIAL_SUM, PARTIAL_MAX, PARTIAL_MIN)
MOST_ELEMENTS = 64
"""The numbers of larger tensors are not followed."""
_TRACKED = (tf.int32, tf.int64, tf.bool)  # other integers may wrap around
Numbers = Callable[[Call, int], "np.ndarray | None"]
Bounds = Callable[[Call], Interval]
Found = TypeVar("Found")


def keeps_signs(value: Any) -> bool:
    """Return whether a part of a sum times a number, or divided by it, is a part of the result: no factor is 0 or infinite.

    A zero then has the sum's sign. Integers wrap.
    """
    return value.dtype.is_integer or (is_finite(value) and is_not_zero(value))


def is_factor(value: Any) -> bool:
    """Return whether parts of a sum times a number are parts of the product: the number is finite. Integers wrap."""
    return value.dtype.is_integer or is_finite(value)


def is_any(value: Any) -> bool:
    """Return whether a number scales parts of a sum, whatever it is."""
    return True


@dataclasses.dataclass
class Row:
    """What the partition knows of a type of operation. Where it says nothing, inputs are gathered and shapes TensorFlow's.

    Attributes:
        terms: the axes of its inputs and outputs, from which shapes, labels and sums are derived.
        label: the labels that it needs and makes; None: those that follow from the terms.
        shape: the shapes of its outputs; None: those that follow from the terms.
        linear: in which inputs it is linear, so that it keeps parts of a sum: SUM, PRODUCT or FIRST.
        fixed: numbers of the inputs in which it is not.
        scales: whether another input can scale a partial sum, by its `Value`.
        keeps: the partial maxima and minima that it keeps.
        passes: the partial labels of its first input that its outputs then have, whatever axes it names.
        moves: None, or the number of its input whose numbers it moves: parts of a sum or an extreme stay such parts, and
            bounds stay.
        numbers: `fn(call, number)`, the numbers of an output as sizes.
        bounds: the bounds of its outputs.
        progression: `fn(call, shape)`, in which way its output counts the samples.
        sums: `fn(call, number)`, for each axis of a broadcast gradient whether it is summed, where `numbers` are not known.
        asserts: the bounds of inputs, by their numbers, that are an error outside of them.
        rewrite: a function of its inputs that computes the same with simpler operations; None: the row holds.
        unchanged: whether the output is the first input.
        copy: `fn(call, given)`, the outputs on one replica, instead of `call.make(given)`.
        elements: the constant of all elements of a list that it makes.
        part: `fn(call, output, want, mesh)`, the labels of inputs with which it makes a part of its output alone, or None.
        draws: whether it draws random numbers, with a state of its kernel.
        reads, writes: whether it reads or writes the variable that is its first input.
        calls_python: whether it runs Python code.
        effect: what it does, and what to do instead, for an error where it cannot run.
        harmless: whether it has no effects, although TensorFlow says so.
        fills: whether it makes samples from inputs that are the same on every replica.
        copies: whether its output is its input.
        adds: whether it adds statistics of a replica, also where nothing says so.
        keeps_stored: whether it makes parts of what replicas store from such parts.
        scalar_scales: whether it keeps parts of a sum where the other inputs are scalars.
        of_sizes: whether it only reads the shapes of its inputs.
        reason: why it needs samples that others have.
    """

    terms: Callable[[Call], Terms] | None = None
    label: Callable[[View], Ruling | None] | None = None
    shape: Callable[[Call], Shapes | None] | None = None
    linear: str | None = None
    fixed: Sequence[int] = ()
    scales: Callable[[Any], bool] = keeps_signs
    keeps: Sequence[Label] = ()
    passes: Sequence[Label] = ()
    moves: int | None = None
    numbers: Numbers | None = None
    bounds: Bounds | None = None
    progression: Callable[[Call, Shape], Progression | None] | None = None
    sums: Callable[[Call, int], tuple[bool | None, ...]] | None = None
    asserts: Callable[[Call], dict[int, Interval]] | None = None
    rewrite: Callable[[Call], Callable[..., Any] | None] | None = None
    unchanged: Callable[[Call], bool] | None = None
    copy: Callable[[ReplicaCall, list[Any]], list[Any]] | None = None
    elements: Callable[[Call], Any] | None = None
    part: Callable[..., Any] | None = None
    draws: bool = False
    reads: bool = False
    writes: bool = False
    calls_python: bool = False
    effect: tuple[str, str] | None = None
    harmless: bool = False
    fills: bool = False
    copies: bool = False
    adds: bool = False
    keeps_stored: bool = False
    scalar_scales: bool = False
    of_sizes: bool = False
    reason: str = "the operation needs all samples"

    @property
    def has_rule(self) -> bool:
        """Whether it says more of labels than that inputs are gathered."""
        return self.label is not None or self.terms is not None

    @property
    def adds_up(self) -> bool:
        """Whether it adds up parts of a sum, moves their numbers or reads their shapes."""
        return self.linear == SUM or self.moves is not None or self.of_sizes

    def find_ruling(self, view: View) -> Ruling:
        """Return the labels that the operation needs and makes; whole inputs where a size or a label allows nothing else."""
        data = self.moves or 0
        if view.labels and view.labels[data] in (self.passes if self.moves is None else _PARTIAL):
            return view.keep(view.labels[data], data)
        try:
            found = None if self.label is None else self.label(view)
            if found is None and self.terms is not None:
                found = label_terms(view, self.terms(view), self)
        except (Unknown, IndexError):
            found = None
        return view.gather() if found is None else found

    def find_shapes(self, call: Call) -> list[Shape]:
        """Return the shape of each output on a single device, for every batch; that of a list is its elements'."""
        try:
            found = None if self.shape is None else self.shape(call)
            if found is None and self.terms is not None:
                found = find_shapes_of_terms(self.terms(call), call)
        except (Unknown, IndexError, ValueError):
            found = None
        return [*(found or ()), *[None] * (call.count - len(found or ()))]


NO_ROW = Row()
ROWS: dict[str, Row] = {}
"""By the type of an operation."""


def add_rows(types: str, **fields: Any) -> None:
    """Enter a row for each of these types."""
    for name in types.split():
        assert name not in ROWS, name
        ROWS[name] = Row(**fields)


def row_of(op: tf.Operation) -> Row:
    """Return the row of an operation."""
    return ROWS.get(kind_of(op), NO_ROW)


def ask(rule: Callable[..., Found] | None, *given: Any) -> Found | None:
    """Return what a rule of a row says; None: there is no rule, or it needs what is not known.

    NumPy's errors are those of what fails on a single device, too.
    """
    try:
        return None if rule is None else rule(*given)
    except (Unknown, IndexError, ValueError):
        return None


def part_by_terms(call: Call, output: Value, want: Label, mesh: MeshAxis) -> Wants | None:
    """Return the labels with which an operation makes a part of its output, from the parts of inputs with that axis."""
    terms = require(row_of(call.op).terms)(call)
    letter, wants = (terms.outputs[0] or "")[want.axis], Wants([None] * len(call.values))
    for number, term in enumerate(terms.inputs):
        axis = (term or "").find(letter)
        if axis >= 0:
            alike = call.shape(number)[axis] == require(output.shape)[want.axis]
            wants[number] = require(want._replace(axis=axis) if alike else None)
    for number, term in terms.sizes.items():
        if letter in term:
            wants[number] = sizes(term.index(letter))
    return None if letter in (*terms.mixed, *terms.cuts, "1") or not any(wants) else wants


def find_values(call: Call, labels: Labels) -> list[Value]:
    """Return what is known of an operation's outputs on a single device, for every batch; with these labels."""
    row, found = row_of(call.op), list[Value]()
    for number, (tensor, shape) in enumerate(zip(call.op.outputs, row.find_shapes(call))):
        value = Value(tensor.dtype, shape, labels)
        found.append(value)
        if tensor.dtype == tf.variant:
            value.elements = ask(row.elements, call)
            continue
        if shape is None:
            value.shape = call.find_traced_shape(number)
        value.constant = _find_numbers(call, number)
        value.interval = _find_bounds(call, number, value.constant)
        if value.constant is None:
            value.sums = ask(row.sums, call, number) or ()
        if number == 0 and tensor.dtype in _TRACKED[:2]:
            value.progression = ask(row.progression, call, value.shape)
    return found


def _find_numbers(call: Call, number: int) -> np.ndarray | None:
    """Return the numbers of an output; None where they are not known, or many."""
    tensor = call.op.outputs[number]
    if tensor.dtype not in _TRACKED or (tensor.shape.num_elements() or 0) > MOST_ELEMENTS:
        return None
    found = ask(row_of(call.op).numbers, call, number)
    if found is None or found.size > MOST_ELEMENTS or not _fits(found, tensor.dtype):
        return None
    return None if found.size and all(each is None for each in found.flat) else found


def _fits(numbers: np.ndarray, dtype: tf.DType) -> bool:
    found = [
        n for v in numbers.flat for n in (v.terms.values() if isinstance(v, Size) else [v]) if n is not None
    ]
    if dtype == tf.bool:
        return True
    least, most = limits_of(dtype)
    return all(least <= n <= most for n in found)


def _find_bounds(call: Call, number: int, known: np.ndarray | None) -> Interval:
    """Return the bounds of an output, or of the numbers that are `known` of it."""
    dtype, row = call.op.outputs[number].dtype, row_of(call.op)
    if dtype == tf.bool:
        return 0, 1
    if not (dtype.is_floating or dtype.is_integer or (dtype.is_complex and not call.values)):
        return ANY
    if known is not None and known.size:
        return round_outwards(bounds_of_sizes(known, dtype), dtype)
    if row.bounds is None:
        return ANY if row.moves is None else round_outwards(call.values[row.moves].interval, dtype)
    return round_outwards(row.bounds(call), dtype)
