"""Curves over epochs as SVG, drawn by matplotlib, which is imported when the first one is drawn."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..monitoring.formatting import short_number
from .runs import Points

# Readable on white and on black.
COLORS = ("#2f7fd6", "#d9662b", "#2f9e55", "#a45fd6", "#b0831a", "#1c94ab", "#d64a8b", "#85807b")
_STYLE = {
    "axes.edgecolor": "#88888888",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#88888844",
    "svg.fonttype": "none",  # texts stay texts, in the font and the colour of the page
    "svg.hashsalt": "unisono",  # the same curves give the same bytes
    "text.parse_math": False,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_LOCK = threading.Lock()
_LARGEST = 1e100  # matplotlib multiplies values


class Line(NamedTuple):
    """One curve."""

    name: str  # for the legend
    points: Points  # (x, y); those that are not finite are left out and counted
    color: int = 0
    dashed: bool = False  # validation is dashed
    faint: bool = False  # the values within epochs, behind the others
    key: bool = True  # whether the legend names it


class Chart(NamedTuple):
    """A drawing of lines, for the page."""

    title: str
    svg: Any  # Markup; empty if no value can be drawn
    lines: Sequence[Line]  # those that are drawn
    note: str


def check_installed() -> None:
    """Raises an ImportError that names the extra without which no page can be made."""
    missing = [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"reports of training runs need {' and '.join(missing)}: pip install 'unisono[report]'"
        )


@contextlib.contextmanager
def chart_style() -> Iterator[None]:
    """The settings of matplotlib while charts are drawn, whatever the program has set. They are those of all threads."""
    import matplotlib.style

    with _LOCK, matplotlib.style.context(["default", _STYLE]):
        yield


def line_chart(title: str, lines: Sequence[Line], whole: bool = False, note: str = "") -> Chart | None:
    """The curves; None if none has a point. `whole`: the y axis begins at 0. Context: `chart_style`."""
    drawn = [line._replace(points=points) for line in lines if (points := _finite(line))]
    lost = _lost([line for line in lines if not line.faint]) or _lost(lines)
    if not drawn:
        return Chart(title, "", [], f"{lost} values, none of them finite") if lost else None
    ys = [y for line in drawn for _, y in line.points]
    logarithmic = not whole and min(ys) > 0 and max(ys) > 50 * min(ys)
    notes = (note, "logarithmic scale" * logarithmic, f"{lost} values are not finite" * (lost > 0))
    return Chart(title, _svg(drawn, whole, logarithmic), drawn, "; ".join(filter(None, notes)))


def _svg(lines: Sequence[Line], whole: bool, logarithmic: bool) -> Any:
    from markupsafe import Markup
    from matplotlib.figure import Figure  # pyplot would keep every chart and open windows

    figure = Figure(figsize=(4.8, 2.7))
    axes = figure.add_axes((0.13, 0.16, 0.85, 0.8))
    for line in lines:
        axes.plot(
            *zip(*line.points),
            color=COLORS[line.color % len(COLORS)],
            linestyle="--" if line.dashed else "-",
            linewidth=1 if line.faint else 1.5,
            alpha=0.55 if line.faint else 1,
            marker="o" if len(line.points) == 1 else "",
            markersize=4,
        )
    axes.set_xlabel("epoch")
    axes.set_xlim(left=0)
    if logarithmic:
        axes.set_yscale("log")
    if whole:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata=_NO_METADATA)
    text = stream.getvalue()
    return Markup(text[text.index("<svg") :])


def _finite(line: Line) -> Points:
    return [point for point in line.points if all(abs(value) < _LARGEST for value in point)]


def _lost(lines: Sequence[Line]) -> int:
    """Values that cannot be drawn."""
    return sum(len(line.points) - len(_finite(line)) for line in lines)
