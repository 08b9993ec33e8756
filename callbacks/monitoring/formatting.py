"""Numbers, times and sizes as people read them."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np

_BAR = ("━", "─", "=", ".")  # the first character of a bar


def scalar(value: Any) -> float | None:
    """Return the mean of a log, or None for something else than numbers."""
    try:
        return float(np.mean(value))
    except (TypeError, ValueError):
        return None


def number(value: Any) -> str:
    """Return a value in full.

    >>> number(1234567), number(0.123456), number(None), number([1, "a"])
    ('1,234,567', '0.1235', '', '1, a')
    """
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(number(v) for v in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def short_number(value: float) -> str:
    """Return a number in at most about seven characters.

    >>> short_number(0.5), short_number(12_345), short_number(2.5e9)
    ('0.5', '12.35k', '2.5G')
    """
    for unit, least, size in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e4, 1e3)):
        if abs(value) >= least:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def moment(seconds: float) -> str:
    """Return a time since 1970, here."""
    return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """Return a time.

    >>> duration(2.5e-5), duration(0.0123), duration(12.34), duration(75), duration(7260)
    ('25 us', '12 ms', '12.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 1e-3 or seconds == 0 else f"{seconds * 1e6:.0f} us"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def fit_to_width(parts: list[str], metrics: list[str], columns: int, may_wrap: bool) -> str:
    """Fit a line of progress into `columns`: drop the rates, then shorten the bar, then drop metrics.

    If it `may_wrap`, metrics that do not fit are on further lines.
    """

    def without(*rates: str) -> Callable[[list[str]], list[str]]:
        return lambda parts: [part for part in parts if not part.endswith(rates)]

    def halve(parts: list[str]) -> list[str]:
        return [part[::2] if part[:1] in _BAR else part for part in parts]

    bare, line = [part for part in without("tokens/s", "samples/s")(parts) if part[:1] not in _BAR], ""
    for shorten in (list, without("tokens/s", "samples/s"), halve, without("/step"), halve):
        parts = shorten(parts)
        if len(line := " ".join(parts) + "".join(metrics)) <= columns:
            return line
    if may_wrap:
        lines = [" ".join(parts)]
        for metric in metrics:
            longer = lines[-1] + metric
            lines = [*lines[:-1], longer] if len(longer) <= columns else [*lines, metric]
        return "\n".join([*(line.ljust(columns) for line in lines[:-1]), lines[-1]])
    begin = " ".join(parts)
    begin = begin if len(begin) <= columns else " ".join(bare)
    for count in range(len(metrics), -1, -1):
        more = f" - +{len(metrics) - count}" if count < len(metrics) else ""
        if len(line := begin + "".join(metrics[:count]) + more) <= columns:
            break
    return line[:columns]
