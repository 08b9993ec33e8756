"""One thing that `doctor` has looked at."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        section: "versions", "devices", "precision", "cluster", "ports", "collectives", "machine" or "listening".
        name: what was looked at.
        value: what was found.
        note: str; what is worth knowing and harms nothing; empty: nothing.
        problem: str; what is wrong and what mends it, in one sentence; empty: nothing is.
    """

    section: str
    name: str
    value: str
    note: str = ""
    problem: str = ""
