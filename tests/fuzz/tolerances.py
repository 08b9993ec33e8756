"""How close numbers must be."""

from __future__ import annotations

from .case import Case

# policy -> (relative to the largest number of an array, the least that counts as its largest number).
BOUNDS = {
    # The unison rule's: sums are added in another order, 53 bits.
    "float64": (1e-12, 1.0),
    # The unison rule's: 24 bits. Numbers below 0.1 are sums in which larger ones have cancelled.
    "float32": (1e-5, 0.1),
    # 8 bits: each replica rounds its part of a gradient, some steps multiply the difference.
    "mixed_bfloat16": (5e-2, 1.0),
    # 11 bits.
    "mixed_float16": (1e-2, 1.0),
}


def bounds(case: Case) -> tuple[float, float]:
    """(relative bound, least scale) of a case."""
    return BOUNDS[case.policy]
