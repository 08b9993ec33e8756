"""Charts as SVG: curves over epochs, and shares of a whole."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Sequence

from ..monitoring.formatting import short_number
from .runs import Points

_WIDTH, _HEIGHT = 480, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 34
_MOST_POINTS = 500  # of a curve: more than it has pixels


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve."""

    name: str  # for the legend
    points: Points  # (x, y); those that are not finite are left out and counted
    color: int = 0  # one of eight
    dashed: bool = False  # validation is dashed
    faint: bool = False  # the values within epochs, behind the others
    key: bool = True  # whether the legend names it

    @property
    def finite(self) -> Points:
        """The points that can be drawn."""
        return [point for point in self.points if all(map(math.isfinite, point))]


def line_chart(title: str, lines: Sequence[Line], whole: bool = False, note: str = "") -> str:
    """A `<figure>` with the curves; an empty string if none has a point. `whole`: the y axis begins at 0."""
    drawn = [(line, outline(line.finite)) for line in lines]
    drawn = [(line, points) for line, points in drawn if points]
    lost = _lost([line for line in lines if not line.faint]) or _lost(lines)
    if not drawn:
        return _figure(title, "", [], f"{lost} values, none of them finite") if lost else ""
    xs, ys = zip(*(point for _, points in drawn for point in points))
    logarithmic = not whole and min(ys) > 0 and max(ys) > 50 * min(ys)
    x_axis = _Axis(min([0.0, *xs]), max(xs), _LEFT, _WIDTH - _RIGHT)
    low, high = 0.0 if whole else min(ys), max(ys)
    margin = 0.0 if logarithmic else 0.05 * (high - low)
    y_axis = _Axis(low if whole else low - margin, high + margin, _HEIGHT - _BOTTOM, _TOP, logarithmic)
    parts = _grid(x_axis, y_axis)
    for line, points in drawn:
        path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
        if len(points) > 1:
            parts.append(f'<polyline class="line {_kind(line)}" points="{path}"/>')
        if not line.faint or len(points) == 1:
            x, y = points[-1]
            place = f'cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}"'
            parts.append(f'<circle class="dot c{line.color % 8}" {place} r="3"/>')
    data = [
        {"n": line.name, "p": [[round(x, 4), short_number(y)] for x, y in points]} for line, points in drawn
    ]
    scale = {"x0": x_axis.low, "x1": x_axis.high, "l": _LEFT / _WIDTH, "r": (_WIDTH - _RIGHT) / _WIDTH}
    label = html.escape(
        f"{title}: " + "; ".join(f"{line.name} ends at {short_number(p[-1][1])}" for line, p in drawn)
    )
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}" '
        f"data-lines='{_attribute(data)}' data-scale='{_attribute(scale)}'>{''.join(parts)}"
        f'<line class="cursor" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" hidden=""/></svg>'
    )
    notes = (note, "logarithmic scale" * logarithmic, f"{lost} values are not finite" * (lost > 0))
    return _figure(title, svg, [line for line, _ in drawn if line.key], "; ".join(filter(None, notes)))


def outline(points: Points) -> Points:
    """Of each part of a long curve the lowest and the highest point, and the last of all: it looks the same.

    >>> outline([(x, x % 5) for x in range(3000)])[-3:]
    [(2989, 4), (2990, 0), (2999, 4)]
    """
    size = 2 * len(points) // _MOST_POINTS or 1
    parts = [points[first : first + size] for first in range(0, len(points), size)]
    kept = {end(part, key=lambda point: point[1]) for part in parts for end in (min, max)}
    return sorted(kept.union(points[-1:]))


def shares(title: str, parts: Sequence[tuple[str, float, str]], note: str = "") -> str:
    """A `<figure>` with one divided bar; each part is (name, amount, what to print for the amount)."""
    total = sum(amount for _, amount, _ in parts)
    if total <= 0:
        return ""
    bars, rows, x = [], [], 0.0
    for index, (name, amount, text) in enumerate(parts):
        width = 100 * amount / total
        bars.append(f'<rect class="c{index % 8}" x="{x:.3f}" y="0" width="{width:.3f}" height="10"/>')
        rows.append(
            f'<tr><td><i class="key c{index % 8}"></i>{html.escape(name)}</td><td>{html.escape(text)}</td>'
            f"<td>{width:.1f} %</td></tr>"
        )
        x += width
    label = html.escape(f"{title}: " + ", ".join(f"{name} {100 * a / total:.0f} %" for name, a, _ in parts))
    svg = f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{label}">'
    body = f'{svg}{"".join(bars)}</svg><table class="numbers">{"".join(rows)}</table>'
    return _figure(title, body, [], note)


def _kind(line: Line) -> str:
    """The classes of its curve and of its key."""
    return f"c{line.color % 8}" + " dashed" * line.dashed + " faint" * line.faint


def _lost(lines: Sequence[Line]) -> int:
    """Values that cannot be drawn."""
    return sum(len(line.points) - len(line.finite) for line in lines)


def _figure(title: str, body: str, lines: Sequence[Line], note: str) -> str:
    keys = "".join(
        f'<span><i class="key {_kind(line)}"></i>{html.escape(line.name)}</span>' for line in lines
    )
    legend = f'<div class="legend">{keys}</div>' if len(lines) > 1 else ""
    note = f'<p class="note">{html.escape(note)}</p>' if note else ""
    name = html.escape(title.lower())
    return (
        f'<figure data-name="{name}"><figcaption>{breakable(title)}</figcaption>{legend}{body}{note}</figure>'
    )


def breakable(name: str) -> str:
    """A name that may go on in the next line after each of its words; HTML."""
    return html.escape(name).replace("_", "_<wbr>")


class _Axis:
    """Maps values to places between `start` and `end`."""

    def __init__(self, low: float, high: float, start: float, end: float, logarithmic: bool = False) -> None:
        if low == high:
            margin = abs(low) / 2 or 0.5
            low, high = (low / 2, high * 2) if logarithmic else (low - margin, high + margin)
        self.low, self.high, self.start, self.end, self.logarithmic = low, high, start, end, logarithmic

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            leads = (1, 2, 5) if high - low <= 2 else (1,)
            marks = [lead * 10.0**power for power in range(low, high + 1) for lead in leads]
            return [m for m in marks if self.low <= m <= self.high][:9]
        step = nice_step((self.high - self.low) / 4)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def nice_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5 or 10 times a power of ten that is at least `rough`.

    >>> nice_step(0.03), nice_step(7.0)
    (0.05, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(lead * power for lead in (1, 2, 2.5, 5, 10, 20) if lead * power >= rough * (1 - 1e-9))


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = []
    for value in y_axis.ticks():
        y = y_axis.at(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short_number(value)}</text>')
    for value in x_axis.ticks():
        x = x_axis.at(value)
        anchor = "end" if x > _WIDTH - 40 else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - 16}" text-anchor="{anchor}">{short_number(value)}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 2}" text-anchor="middle">epoch</text>')
    return parts


def _attribute(value: object) -> str:
    return html.escape(json.dumps(value, separators=(",", ":")), quote=True)
