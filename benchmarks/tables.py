"""Tables in Markdown, and numbers in them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    line: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def spread(values: Sequence[float], unit: float = 1.0, form: str = "{:.2f}") -> str:
    """Median and quartiles as text: `33 [32-49]`; nothing where nothing was measured."""
    scaled = [unit * value for value in values]
    if len(scaled) < 2:
        return form.format(scaled[0]) if scaled else ""
    low, middle, high = statistics.quantiles(scaled, n=4, method="inclusive")
    return f"{form.format(middle)} [{form.format(low)}-{form.format(high)}]"
