"""How the values that replicas give a variable become one."""

from __future__ import annotations

from typing import Any

MEAN = "mean"  # weighted with the samples
SUM = "sum"  # of what the replicas add
FIRST = "first"  # that of the first replica
EQUAL = "equal"
"""For integers that nobody has declared: where all replicas with samples write one value, that is it, else SUM."""


def declared(variable: Any) -> str | None:
    """What the `aggregation` of a Keras variable says; None where it says nothing."""
    kinds = {"mean": MEAN, "sum": SUM, "only_first_replica": FIRST}
    return kinds.get(getattr(variable, "aggregation", None) or "none")
