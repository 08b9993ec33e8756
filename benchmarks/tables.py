"""Makes Markdown tables, which benchmarks print (`publish`) and `python -m benchmarks --write` copies into the guides."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence

# A guide has each table between `<!-- begin table: NAME -->` and `<!-- end table -->`.
REGION = re.compile(r"<!-- begin table: (\w+) -->\n(.*?)\n<!-- end table -->", re.DOTALL)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    line: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def spread(values: Sequence[float], unit: float = 1.0, form: str = "{:.2f}") -> str:
    """Median and quartiles as text, `33 [32-49]`; empty without values."""
    scaled = [unit * value for value in values]
    if len(scaled) < 2:
        return form.format(scaled[0]) if scaled else ""
    low, middle, high = statistics.quantiles(scaled, n=4, method="inclusive")
    return f"{form.format(middle)} [{form.format(low)}-{form.format(high)}]"


def region(name: str, table: str) -> str:
    """The table between its marks."""
    return f"<!-- begin table: {name} -->\n{table}\n<!-- end table -->"


def publish(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints the table `name` of a guide; nothing if it has no lines."""
    if rows:
        print(f"\n{region(name, markdown(head, rows))}\n", flush=True)


def tables_in(text: str) -> dict[str, str]:
    r"""Name -> table, for all tables in a text.

    >>> tables_in("before\n<!-- begin table: a -->\n| 1 |\n<!-- end table -->\n")
    {'a': '| 1 |'}
    """
    return {found[1]: found[2] for found in REGION.finditer(text)}


def with_tables(text: str, tables: dict[str, str]) -> str:
    """The text with these tables replaced by name; other tables stay unchanged."""
    return REGION.sub(lambda found: region(found[1], tables.get(found[1], found[2])), text)
