"""The curves of runs over epochs, in groups, as SVG; matplotlib draws them, and is imported for the first one."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..monitoring.formatting import short_number
from .runs import Points, Run

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
_OTHERS: dict[str, Callable[[Run], Points]] = {
    "learning rate": lambda run: run.value("learning_rate"),
    "gradient norm": lambda run: run.value("gradient_norm"),
    "loss scale": lambda run: run.log_ending_with("loss_scale"),
    "skipped steps": lambda run: run.log_ending_with("skipped_steps"),
    "samples per second": Run.samples_per_second,
}
_FROM_ZERO = ("samples per second", "skipped steps", "memory, MB")
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
            f"reports of training runs need {' and '.join(missing)}: pip install matplotlib jinja2"
        )


@contextlib.contextmanager
def chart_style() -> Iterator[None]:
    """The settings of matplotlib while charts are drawn, whatever the program has set. They are those of all threads."""
    import matplotlib.style

    with _LOCK, matplotlib.style.context(["default", _STYLE]):
        yield


def metric_charts(runs: Sequence[Run]) -> dict[str, list[Chart]]:
    """Group -> a chart for each metric. The colour distinguishes training from validation, or several runs."""
    names = unique(name for run in runs for name in run.metric_names())
    outputs = unique(name for run in runs for name in run.facts.get("model", {}).get("outputs", []))
    return {
        group: [chart for name, title in members if (chart := _metric_chart(runs, name, title))]
        for group, members in grouped(names, outputs).items()
    }


def grouped(names: Sequence[str], outputs: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Metrics by the output that they are of, or by what comes before the "/" in their names.

    >>> grouped(["loss", "left_loss", "left_auc", "a/b"], ["left", "right"])
    {'': [('loss', 'loss')], 'left': [('left_loss', 'loss'), ('left_auc', 'auc')], 'a': [('a/b', 'b')]}
    """
    groups: dict[str, list[tuple[str, str]]] = {"": []}
    for name in names:
        before, slash, after = name.partition("/")
        output = max((each for each in outputs if name.startswith(f"{each}_")), key=len, default="")
        if output:
            groups.setdefault(output, []).append((name, name.removeprefix(f"{output}_")))
        elif slash and before and after:
            groups.setdefault(before, []).append((name, after))
        else:
            groups[""].append((name, name))
    return {group: members for group, members in groups.items() if members}


def other_charts(runs: Sequence[Run]) -> dict[str, Chart]:
    """Title -> chart: the learning rate and everything else that is measured; the memory for one run alone."""
    one = len(runs) == 1
    lines = {
        title: [Line(title if one else run.name, points(run), i) for i, run in enumerate(runs)]
        for title, points in _OTHERS.items()
    }
    if one:
        memory = [(line["epoch"] + 1.0, line["workers"][0]["memory"]) for line in runs[0].epochs]
        lines["memory, MB"] = []
        for i, kind in enumerate(unique(kind for _, used in memory for kind in used)):
            points = [(x, used[kind] / 1e6) for x, used in memory if kind in used]
            lines["memory, MB"].append(Line(kind, points, i // 2, dashed=kind.endswith("peak")))
    charts = {title: line_chart(title, each, whole=title in _FROM_ZERO) for title, each in lines.items()}
    return {title: chart for title, chart in charts.items() if chart}


def _metric_chart(runs: Sequence[Run], name: str, title: str) -> Chart | None:
    """Training and validation at the end of each epoch; behind them, for one run, what lies within the epochs."""
    one, validated = len(runs) == 1, False
    lines = []
    for i, run in enumerate(runs):
        training, validation = run.log(name, fine=False), run.log(f"val_{name}", fine=False)
        if one or not training:
            label = "within epochs" if one else f"{run.name}, within epochs"
            lines.append(Line(label, run.recent(name), i, faint=True))
        lines.append(Line("training" if one else run.name, training, i))
        label = "validation" if one else f"{run.name}, validation"
        lines.append(Line(label, validation, 1 if one else i, dashed=True, key=one))
        validated = validated or bool(validation)
    return line_chart(title, lines, note="dashed: validation" * (validated and not one))


def unique(items: Iterable[str]) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(items))


def line_chart(title: str, lines: Sequence[Line], whole: bool = False, note: str = "") -> Chart | None:
    """The curves; None if none has a point. `whole`: the y axis begins at 0. Context: `chart_style`."""
    drawn = [line._replace(points=points) for line in lines if (points := _finite(line))]
    counts = [(line.faint, len(line.points) - len(_finite(line))) for line in lines]
    lost = sum(count for faint, count in counts if not faint) or sum(count for _, count in counts)
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
