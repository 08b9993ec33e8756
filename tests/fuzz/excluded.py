"""What is known to be wrong and is being mended: these cases are not drawn, unless `--all` is given. Meant to be empty."""

from __future__ import annotations

from .case import Case
from .rules import Rules

EXCLUDED: Rules = ()


def excluded(case: Case) -> str | None:
    """The reason why a case is left out for now; None where it is not."""
    return next((reason for reason, holds in EXCLUDED if holds(case)), None)
