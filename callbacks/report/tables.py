"""Tables, which on a phone become one block for each row, so that nothing is scrolled sideways."""

from __future__ import annotations

import html
from collections.abc import Sequence


class Html(str):
    """Text that is HTML already; any other is escaped."""


def text_of(value: str) -> str:
    """What stands in the page for a text."""
    return value if isinstance(value, Html) else html.escape(value)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """An HTML table. With heads, each cell also has that of its column, for narrow windows."""
    head = "".join(f"<th>{text_of(h)}</th>" for h in heads)
    labels = [f' data-label="{html.escape(_plain(h))}"' for h in heads]
    body = "".join(
        "<tr>"
        + "".join(f"<td{labels[i] if heads else ''}>{text_of(cell)}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    kind = " ".join(filter(None, ["stacked" if heads else "", kind]))
    opening = f'<table class="{kind}">' if kind else "<table>"
    return f"{opening}{f'<thead><tr>{head}</tr></thead>' if heads else ''}<tbody>{body}</tbody></table>"


def _plain(text: str) -> str:
    """Without the mark of a run's colour."""
    return text.rpartition(">")[2] if isinstance(text, Html) else text
