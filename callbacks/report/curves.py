"""Which curves a page shows of one run or several, and in which groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .charts import Chart, Line, line_chart
from .runs import Points, Run

_OTHERS: dict[str, Callable[[Run], Points]] = {
    "learning rate": lambda run: run.value("learning_rate"),
    "gradient norm": lambda run: run.value("gradient_norm"),
    "loss scale": lambda run: run.log_ending_with("loss_scale"),
    "skipped steps": lambda run: run.log_ending_with("skipped_steps"),
    "samples per second": lambda run: run.samples_per_second(),
}
_FROM_ZERO = ("samples per second", "skipped steps", "memory, MB")


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
        lines["memory, MB"] = [
            Line(
                kind,
                [(x, used[kind] / 1e6) for x, used in memory if kind in used],
                i // 2,
                kind.endswith("peak"),
            )
            for i, kind in enumerate(unique(kind for _, used in memory for kind in used))
        ]
    charts = {title: line_chart(title, each, whole=title in _FROM_ZERO) for title, each in lines.items()}
    return {title: chart for title, chart in charts.items() if chart}


def _metric_chart(runs: Sequence[Run], name: str, title: str) -> Chart | None:
    validated = len(runs) > 1 and any(run.log(f"val_{name}", fine=False) for run in runs)
    return line_chart(title, _lines(runs, name), note="dashed: validation" * validated)


def _lines(runs: Sequence[Run], name: str) -> list[Line]:
    """Training and validation at the end of each epoch; behind them, for one run, what lies within the epochs."""
    one = len(runs) == 1
    lines = []
    for i, run in enumerate(runs):
        training, validation = run.log(name, fine=False), run.log(f"val_{name}", fine=False)
        if one or not training:
            label = "within epochs" if one else f"{run.name}, within epochs"
            lines.append(Line(label, run.recent(name), i, faint=True))
        lines.append(Line("training" if one else run.name, training, i))
        label = "validation" if one else f"{run.name}, validation"
        lines.append(Line(label, validation, 1 if one else i, dashed=True, key=one))
    return lines


def unique(items: Iterable[str]) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(items))
