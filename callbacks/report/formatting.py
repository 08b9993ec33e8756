"""Numbers, times and tables as text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any


def number(value: Any) -> str:
    """A value for people.

    >>> number(1234567), number(0.123456), number(None), number([1, "a"])
    ('1,234,567', '0.1235', '', '1, a')
    """
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(number(v) for v in value)
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(0.0123), duration(12.34), duration(75), duration(7260)
    ('12 ms', '12.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def bytes_text(size: int | None) -> str:
    """A size for people; empty where it is not known.

    >>> bytes_text(1_500_000), bytes_text(None)
    ('1.5 MB', '')
    """
    if size is None:
        return ""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], escaped: bool = False) -> str:
    """An HTML table; `escaped`: the cells are HTML already."""
    clean = (lambda text: text) if escaped else html.escape
    head = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{clean(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if heads else ''}<tbody>{body}</tbody></table>"
