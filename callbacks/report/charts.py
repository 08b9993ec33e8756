"""Draw the curves of runs over epochs and steps, in groups, as SVG; matplotlib is imported for the first one."""

import contextlib
import importlib.util
import io
import itertools
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..monitoring.formatting import number, short_number
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
_SIZE = (4.8, 2.9)  # inches
_AREA = (0.13, 0.22, 0.85, 0.75)  # of the axes: left, bottom, width, height, in parts of the size
_MOST_BANDS = 60  # of a chart: places under the pointer that show values
_LOCK = threading.Lock()
_LARGEST = 1e100  # matplotlib multiplies values


class Line(NamedTuple):
    """One curve."""

    name: str  # for the legend
    points: Points  # (x, y); those that are not finite are left out and counted
    color: int = 0
    dashed: bool = False  # validation is dashed
    faint: bool = False  # the values within epochs, behind the others
    steps: bool = False  # a value is that since the previous one, as of a learning rate
    key: bool = True  # whether the legend names it


class Chart(NamedTuple):
    """A drawing of lines, for the page."""

    title: str
    svg: Any  # Markup; empty if no value can be drawn, or all are the same
    lines: Sequence[Line]  # those with values
    note: str


def check_installed() -> None:
    """Raise an ImportError that names the extra without which no page can be made."""
    if missing := [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]:
        raise ImportError(f"reports need {' and '.join(missing)}: pip install matplotlib jinja2")


@contextlib.contextmanager
def chart_style() -> Iterator[None]:
    """Set matplotlib up for charts in the block, whatever the program has set. The settings hold for all threads."""
    import matplotlib.style

    with _LOCK, matplotlib.style.context(["default", _STYLE]):
        yield


def metric_charts(runs: Sequence[Run]) -> dict[str, list[Chart]]:
    """Group -> a chart for each metric. The colour distinguishes training from validation, or several runs."""
    names = unique(name for run in runs for name in run.metric_names())
    outputs = unique(name for run in runs for name in run.facts.get("model", {}).get("outputs", []))
    return {
        group: [chart for name, title in members if (chart := _metric_chart(runs, name, title))]
        for group, members in group_metrics(names, outputs).items()
    }


def group_metrics(names: Sequence[str], outputs: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Group metrics by their output, or by what comes before the "/" in their names.

    >>> group_metrics(["loss", "left_loss", "left_auc", "a/b"], ["left", "right"])
    {'': [('loss', 'loss')], 'left': [('left_loss', 'loss'), ('left_auc', 'auc')], 'a': [('a/b', 'b')]}
    """
    groups: dict[str, list[tuple[str, str]]] = {"": []}
    for name in names:
        before, slash, after = name.partition("/")
        if output := max((each for each in outputs if name.startswith(f"{each}_")), key=len, default=""):
            groups.setdefault(output, []).append((name, name.removeprefix(f"{output}_")))
        elif slash and before and after:
            groups.setdefault(before, []).append((name, after))
        else:
            groups[""].append((name, name))
    return {group: members for group, members in groups.items() if members}


def other_charts(runs: Sequence[Run]) -> dict[str, Chart]:
    """Return title -> chart of the learning rate and other measurements; the memory only for a single run."""
    one = len(runs) == 1
    lines = {
        title: [
            Line(title if one else run.name, points(run), i, steps=title == "learning rate")
            for i, run in enumerate(runs)
        ]
        for title, points in _OTHERS.items()
    }
    if one:
        memory = [(line["epoch"] + 1.0, line["workers"][0]["memory"]) for line in runs[0].epochs]
        lines["memory, MB"] = []
        for i, kind in enumerate(unique(kind for _, used in memory for kind in used)):
            points = [(x, used[kind] / 1e6) for x, used in memory if kind in used]
            lines["memory, MB"].append(Line(kind, points, i // 2, dashed=kind.endswith("peak")))
    steps, grey = _common_steps(runs), {"samples per second": runs[0].first_epochs()} if one else {}
    charts = (
        line_chart(title, each, title in _FROM_ZERO, steps=steps, grey=grey.get(title, ()))
        for title, each in lines.items()
    )
    return {chart.title: chart for chart in charts if chart}


def _common_steps(runs: Sequence[Run]) -> int | None:
    """Return the steps of every epoch of every run; None if they differ."""
    steps = {run.epoch_steps for run in runs}
    return steps.pop() if len(steps) == 1 else None


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
    note = "dashed: validation" * (validated and not one)
    return line_chart(title, lines, note=note, steps=_common_steps(runs))


def unique(items: Iterable[str]) -> list[str]:
    """Return each once, in order."""
    return list(dict.fromkeys(items))


def line_chart(
    title: str,
    lines: Sequence[Line],
    whole: bool = False,
    note: str = "",
    steps: int | None = None,
    grey: Collection[int] = (),
) -> Chart | None:
    """Draw the curves; None if none has a point, without a drawing if all points have one value. Context: `chart_style`.

    `whole`: the y axis begins at 0. `steps` of an epoch, for a second scale of the x axis. `grey`: epochs that compile.
    """
    drawn = [line._replace(points=points) for line in lines if (points := _finite(line))]
    counts = [(line.faint, len(line.points) - len(_finite(line))) for line in lines]
    lost = sum(count for faint, count in counts if not faint) or sum(count for _, count in counts)
    if not drawn:
        return Chart(title, "", [], f"{lost} values, none of them finite") if lost else None
    ys = [y for line in drawn for _, y in line.points]
    if min(ys) == max(ys) and len({x for line in drawn for x, _ in line.points}) > 1 and not lost:
        return Chart(title, "", drawn, "")
    logarithmic = not whole and min(ys) > 0 and max(ys) > 50 * min(ys)
    compiles = "grey: an epoch that also compiles the step" * bool(grey)
    notes = (note, compiles, "logarithmic scale" * logarithmic, f"{lost} values are not finite" * (lost > 0))
    return Chart(title, _svg(drawn, whole, logarithmic, steps, grey), drawn, "; ".join(filter(None, notes)))


def _svg(lines: Sequence[Line], whole: bool, log: bool, steps: int | None, grey: Collection[int]) -> Any:
    from markupsafe import Markup
    from matplotlib.figure import Figure  # pyplot would keep every chart and open windows
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_SIZE)
    axes = figure.add_axes(_AREA)
    for epoch in grey:
        axes.axvspan(epoch, epoch + 1, color="#88888833", linewidth=0)
    for line in lines:
        begin, value = line.points[0]
        axes.plot(
            *zip(*[(math.ceil(begin) - 1, value)] * line.steps, *line.points),
            color=COLORS[line.color % len(COLORS)],
            linestyle="--" if line.dashed else "-",
            drawstyle="steps-pre" if line.steps else "default",
            linewidth=1 if line.faint else 1.5,
            alpha=0.55 if line.faint else 1,
            marker="o" if len(line.points) == 1 else "",
            markersize=4,
        )
    axes.set_xlabel("epoch, step" if steps else "epoch")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=axes.get_xlim()[1] > 4))
    if steps:
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}\n{short_number(round(x * steps))}")
    if log:
        axes.set_yscale("log")
    if whole:  # the margin of a curve that hardly changes is too small at the top
        axes.set_ylim(0, 1.1 * max(y for line in lines for _, y in line.points) or 1)
    axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata=_NO_METADATA)
    text = stream.getvalue()
    bands = _bands(lines, axes.get_xlim(), steps)
    return Markup(text[text.index("<svg") : text.rindex("</svg>")]) + bands + Markup("</svg>\n")


def _bands(lines: Sequence[Line], limits: tuple[float, float], steps: int | None) -> Any:
    """Draw what shows the values under the pointer without a script: a rectangle with a title for each place."""
    from markupsafe import Markup

    values = [(line.name, dict(line.points)) for line in lines]
    at = sorted({x for line in lines if not line.faint for x, _ in line.points} or values[0][1])
    every = -(-len(at) // _MOST_BANDS)
    at = at[::-every][::-1]  # the last is always there
    left, bottom, width, height = (72 * part * _SIZE[i % 2] for i, part in enumerate(_AREA))  # as in the SVG
    places = [left + width * (x - limits[0]) / (limits[1] - limits[0]) for x in at]
    edges = [left, *((a + b) / 2 for a, b in itertools.pairwise(places)), left + width]
    bands = []
    for x, begin, end in zip(at, edges, edges[1:]):
        where = f"epoch {x:.6g}" + (f", step {round(x * steps):,}" if steps else "")
        text = "\n".join([where, *(f"{name}: {number(known[x])}" for name, known in values if x in known)])
        shape = Markup(
            '<rect class="at" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
        )
        bands.append(shape.format(begin, 72 * _SIZE[1] - bottom - height, end - begin, height, text))
    return Markup("\n").join(bands)


def _finite(line: Line) -> Points:
    return [point for point in line.points if all(abs(value) < _LARGEST for value in point)]
