"""Numerical tolerances."""

from __future__ import annotations

from .case import Case

# policy -> (tolerance relative to the largest value of an array, the smallest value that counts as the largest).
BOUNDS = {
    # Replica parity: another summation order, 53 bits.
    "float64": (1e-12, 1.0),
    # Replica parity: 24 bits. Numbers below 0.1 are sums in which larger ones have cancelled.
    "float32": (1e-5, 0.1),
    # 8 bits: each replica rounds its part of a gradient, and some steps amplify the difference.
    "mixed_bfloat16": (5e-2, 1.0),
    # 11 bits.
    "mixed_float16": (1e-2, 1.0),
}


def bounds(case: Case) -> tuple[float, float]:
    """(relative tolerance, smallest scale) of a case."""
    return BOUNDS[case.policy]
