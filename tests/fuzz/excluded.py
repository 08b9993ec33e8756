"""Known failures that are being fixed: these cases are only drawn with `--all`. Should be empty."""

from __future__ import annotations

from .case import Case
from .rules import Rules

EXCLUDED: Rules = ()


def excluded(case: Case) -> str | None:
    """The reason why a case is excluded for now; None if it is not."""
    return next((reason for reason, holds in EXCLUDED if holds(case)), None)
