"""Sizes of a step for every batch: integers, or polynomials in the numbers of samples of its arrays and in lengths.

What is true of a size is proved for every number of samples, which is at least 1, and for every length, or it is not known:
None.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias


class Samples:
    """The number of samples of one array of the batch: at least 1. Two that the step needs to be equal become one."""

    def __init__(self) -> None:
        self._same: Samples | None = None

    def find(self) -> Samples:
        """Return the one that stands for all that are equal to this one."""
        return self if self._same is None else self._same.find()

    def join(self, other: Samples) -> None:
        """Make two numbers one; the step must check at run time that they are equal."""
        one, same = self.find(), other.find()
        if one is not same:
            one._same = same


class Length(Samples):
    """Another extent, for instance of sentences: at least 0. On every replica it is that of a single device."""


class Entries(Length):
    """The number of all values of a ragged array, of which replicas have different parts.

    Two are equal where each of the `samples` has as many values in both arrays.
    """

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self.samples = samples

    def join(self, other: Samples) -> None:
        """Make two numbers of values one, and those of the samples."""
        super().join(other)
        if isinstance(other, Entries):
            self.samples.join(other.samples)


Monomial: TypeAlias = "tuple[Samples, ...]"


class Size:
    """A polynomial with integer coefficients: `terms` has the coefficient of each product of numbers and lengths."""

    __slots__ = ("_terms",)

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self._terms = terms

    @classmethod
    def of(cls, samples: Samples) -> Size:
        """Return the number of samples itself."""
        return cls({(samples,): 1})

    @property
    def terms(self) -> Mapping[Monomial, int]:
        """The coefficients, after numbers of samples became one."""
        if all(each._same is None for term in self._terms for each in term):
            return self._terms
        found: dict[Monomial, int] = {}
        for term, factor in self._terms.items():
            key = tuple(sorted((each.find() for each in term), key=id))
            found[key] = found.get(key, 0) + factor
        self._terms = found
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | Size):
            return NotImplemented
        one, other = self.terms, _terms(other)
        return all(one.get(term, 0) == other.get(term, 0) for term in {*one, *other})

    def __hash__(self) -> int:
        return hash(sum(self._terms.values()))  # the same after numbers of samples became one

    def __add__(self, other: Known) -> Known:
        found = dict(self.terms)
        for term, factor in _terms(other).items():
            found[term] = found.get(term, 0) + factor
        return _size(found)

    __radd__ = __add__

    def __neg__(self) -> Known:
        return self * -1

    def __sub__(self, other: Known) -> Known:
        return self + other * -1

    def __rsub__(self, other: Known) -> Known:
        return self * -1 + other

    def __mul__(self, other: Known) -> Known:
        found: dict[Monomial, int] = {}
        for one, factor in self.terms.items():
            for term, times in _terms(other).items():
                key = tuple(sorted(one + term, key=id))
                found[key] = found.get(key, 0) + factor * times
        return _size(found)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        names = {
            each: "n" * (n + 1) for n, each in enumerate(dict.fromkeys(s for t in self.terms for s in t))
        }
        return " + ".join("*".join([str(f), *(names[s] for s in term)]) for term, f in self.terms.items())

    @property
    def is_of_lengths(self) -> bool:
        """Whether it depends on lengths, and on no number of samples."""
        return all(isinstance(each, Length) for term in self.terms for each in term)

    def at(self, samples: int) -> int | None:
        """Return the size for arrays with so many samples each; None where it depends on a length."""
        if any(isinstance(each, Length) for term in self.terms for each in term):
            return None
        return sum(factor * samples ** len(term) for term, factor in self.terms.items())


Known: TypeAlias = "int | Size"
Extent: TypeAlias = "int | Size | None"
Shape: TypeAlias = "list[Extent] | None"
"""The extents of a tensor; None where they, or its rank, are not known."""


def _terms(size: Any) -> Mapping[Monomial, int]:
    return size.terms if isinstance(size, Size) else {(): int(size)}


def _size(terms: Mapping[Monomial, int]) -> Known:
    found = {term: factor for term, factor in terms.items() if factor}
    return found.get((), 0) if not any(found) else Size(found)


def if_known(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of known sizes return None if one of them is not known."""
    return functools.wraps(fn)(lambda *sizes: None if None in sizes else fn(*sizes))


def is_open(extent: Extent) -> bool:
    """Return whether an extent depends on the size of the batch, or is not known."""
    return not isinstance(extent, int)


def never_negative(size: Known) -> bool:
    """Return whether a size is at least 0 for every batch: no coefficient is negative for `samples - 1` and lengths."""
    if not isinstance(size, Size):
        return size >= 0
    found: dict[Monomial, int] = {}
    for term, factor in size.terms.items():
        products: list[Monomial] = [()]
        for each in term:  # one of `samples - 1` and 1, or the length
            more = [(*product, each) for product in products]
            products = more if isinstance(each, Length) else products + more
        for product in products:
            key = tuple(sorted(product, key=id))
            found[key] = found.get(key, 0) + factor
    return all(factor >= 0 for factor in found.values())


@if_known
def at_most(one: Known, other: Known) -> bool | None:
    """Tell whether `one <= other`; None where that depends on the batch."""
    return True if never_negative(other - one) else False if never_negative(one - other - 1) else None


@if_known
def equal(one: Known, other: Known) -> bool | None:
    """Tell whether two sizes are equal; None where that depends on the batch."""
    if one == other:
        return True
    return False if never_negative(one - other - 1) or never_negative(other - one - 1) else None


@if_known
def largest(one: Known, other: Known) -> Extent:
    """Return the larger of two sizes."""
    return other if at_most(one, other) else one if at_most(other, one) else None


@if_known
def smallest(one: Known, other: Known) -> Extent:
    """Return the smaller of two sizes."""
    return one if at_most(one, other) else other if at_most(other, one) else None


def divide(size: Extent, by: Extent, never_zero: bool = False) -> tuple[Extent, Extent]:
    """Return the quotient, rounded down, and the remainder. The caller may know that the divisor is `never_zero`."""
    if size is None or by is None or by == 0:
        return None, None
    if not (never_negative(by - 1 + never_zero) or never_negative(-by - 1)):
        return None, None
    if isinstance(size, int) and isinstance(by, int):
        return divmod(size, by)
    if isinstance(by, int):
        rest = _terms(size).get((), 0)
        if any(factor % by for term, factor in _terms(size).items() if term):
            return None, None
        whole = {term: factor // by for term, factor in _terms(size).items()}
        return _size(whole | {(): rest // by}), rest % by
    if len(by.terms) != 1:
        return (1, 0) if size == by else (None, None)
    ((divisor, factor),) = by.terms.items()
    found: dict[Monomial, int] = {}
    for term, times in _terms(size).items():
        left = [*term]
        for each in divisor:
            if each not in left:
                return (0, 0) if size == 0 else (None, None)
            left.remove(each)
        if times % factor:
            return None, None
        found[tuple(left)] = times // factor
    return _size(found), 0


def quotient(size: Extent, by: Extent) -> Extent:
    """Return an exact quotient of two numbers of elements; None where there is a remainder, or it is not known.

    The second one is not 0: TensorFlow cannot infer an extent of a tensor without elements.
    """
    found, rest = divide(size, by, never_zero=True)
    return found if rest == 0 else None


def per_sample(size: Extent) -> int | None:
    """Return how many entries a size has for each sample; None if it is not a multiple of an array's samples."""
    if not isinstance(size, Size) or len(size.terms) != 1:
        return None
    ((term, factor),) = size.terms.items()
    return factor if len(term) == 1 and factor > 0 and not isinstance(term[0], Length) else None


def count_entries(samples: Extent) -> Known:
    """Return a new number of values, of an array with so many samples; raise `ValueError` where it has not one of each."""
    if not isinstance(samples, Size) or per_sample(samples) != 1:
        raise ValueError(samples)
    (((each,), _),) = samples.terms.items()
    return Size.of(Entries(each))


def is_divided(extent: Extent, blocks: int = 1) -> bool:
    """Return whether each of the blocks of an axis certainly has a part for every sample: a multiple of their number."""
    if not isinstance(extent, Size):
        return False
    if any(factor % blocks for factor in extent.terms.values()):
        return False
    common = frozenset.intersection(*(frozenset(term) for term in extent.terms))
    return not all(isinstance(each, Length) for each in common)


def same_extent(one: Extent, other: Extent) -> Extent:
    """Return the extent of two axes that an operation needs to be equal; numbers of samples become one."""
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, Size) and isinstance(other, Size):
        return one if _join(one, other) else None
    return one if isinstance(one, int) else other


def broadcast_extent(one: Extent, other: Extent) -> Extent:
    """Return the extent of two axes that are broadcast against each other; numbers of samples become one."""
    if one == 1 or one == other:
        return other
    if other == 1:
        return one
    for size in (one, other):
        if isinstance(size, int):
            return size  # the other one is the same, or 1
    if isinstance(one, Size) and isinstance(other, Size) and _join(one, other):
        return one
    return None


def _join(one: Size, other: Size) -> bool:
    """Make numbers of samples one where that makes two sizes equal; tell whether it does."""
    ((first, k), *more), ((second, m), *others) = one.terms.items(), other.terms.items()
    if more or others or k != m or not len(first) == len(second) == 1:
        return False
    kinds = {Entries if isinstance(each, Entries) else type(each) for each in (*first, *second)}
    if k < 1 or len(kinds) > 1 or kinds == {Length}:
        return False
    first[0].join(second[0])
    return True
