"""The page: what a reader wants to know first, then the curves, then the tables."""

from __future__ import annotations

import datetime
import html
from collections.abc import Iterable, Sequence

from ..formatting import bytes_text, duration, number
from .charts import Line, line_chart, shares
from .runs import Run
from .style import SCRIPT, STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_PARTS = {
    "compute": "compute",
    "input": "waiting for input",
    "callbacks": "callbacks",
    "validation": "validation",
    "other": "building, beginning of epochs",
    "report": "this report",
    "unaccounted": "outside of what is measured",
}
_NEWS_SECONDS = 60.0  # a run that is at work and has written nothing for so long is said to be without news
_FACTS = ("strategy", "configuration", "model", "machine", "environment", "versions")


def render(runs: Sequence[Run], refresh_seconds: float | None = None) -> str:
    """The whole page, for one run or several side by side.

    While a single run is in progress the browser reloads it every `refresh_seconds`; None: never.
    """
    one = len(runs) == 1
    title = runs[0].title if one else f"{len(runs)} trainings"
    refresh = ""
    if one and refresh_seconds and not runs[0].how:
        refresh = f'<meta http-equiv="refresh" content="{max(2, round(refresh_seconds))}">'
    body = _one(runs[0]) if one else _several(runs)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">{refresh}'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"{body}<script>{SCRIPT}</script></body></html>\n"
    )


def _one(run: Run) -> str:
    restarts = f", {len(run.restarts)} restart{'s' * (len(run.restarts) > 1)}" if run.restarts else ""
    news = "" if run.how else f' data-now="{run.now:.0f}" data-patience="{_patience(run):.0f}"'
    return (
        f'<header><h1>{html.escape(run.title)}</h1><p><span class="state"{news}>{html.escape(run.how or "running")}</span> '
        f'<span class="dim">began {_moment(run.began)}, {duration(run.now - run.began)} until the last update{restarts}'
        f"</span></p></header>{_tiles(run)}{_section('Curves', _charts([run]), 'charts')}"
        f"{_section('Time', _time(run), 'charts')}{_workers(run)}{_facts(run)}"
    )


def _patience(run: Run) -> float:
    """Seconds after which a run that is at work should have written another line."""
    longest = max((line.get("elapsed") or 0.0 for line in run.epochs), default=0.0)
    return max(_NEWS_SECONDS, 3 * longest)


def _several(runs: Sequence[Run]) -> str:
    columns = _unique(
        name
        for run in runs
        for metric in run.metric_names()
        for name in (metric, f"val_{metric}")
        if name == metric or run.log(name, fine=False)
    )
    rows = [
        [
            f'<i class="key c{i % 8}"></i>{html.escape(run.name)}',
            html.escape(run.how or "running or killed"),
            number(run.epochs_done),
            duration(run.now - run.began),
            *(number(run.last(name)) for name in columns),
        ]
        for i, run in enumerate(runs)
    ]
    results = _table(["run", "state", "epochs", "time", *columns], rows, escaped=True)
    differences = _differences(runs)
    different = _table(["", *(run.name for run in runs)], differences) if differences else "<p>Nothing.</p>"
    return (
        f"<header><h1>{len(runs)} trainings side by side</h1></header>"
        f"{_section('Results', results)}{_section('Curves', _charts(runs), 'charts')}"
        f"{_section('What is different in their configuration', different)}"
    )


def _tiles(run: Run) -> str:
    tiles = [(f"{run.epochs_done} of {run.facts['configuration']['epochs']}", "epochs done")]
    for name in run.metric_names()[:3]:
        for key, label in ((name, name), (f"val_{name}", f"{name}, validation")):
            points = run.log(key, fine=not key.startswith("val_"))
            if points:
                tiles.append((number(points[-1][1]), label))
    rows = run.rows_per_second()
    if rows:
        tiles.append((number(rows[-1][1]), "rows per second"))
    tiles.append((number(run.facts["strategy"]["replicas"]), "replicas"))
    tiles.append((number(run.facts["model"]["trainable parameters"]), "trainable parameters"))
    boxes = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
        for value, label in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def _charts(runs: Sequence[Run]) -> str:
    """The curves; for one run the colour distinguishes training from validation, for several the run."""
    one = len(runs) == 1
    charts = []
    for name in _unique(name for run in runs for name in run.metric_names()):
        lines = []
        for i, run in enumerate(runs):
            lines.append(Line("training" if one else run.name, run.log(name), i))
            label = "validation" if one else f"{run.name}, validation"
            validation = run.log(f"val_{name}", fine=False)
            lines.append(Line(label, validation, 1 if one else i, dashed=True))
        charts.append(line_chart(name, lines))
    for title, points in (
        ("learning rate", lambda run: run.value("learning_rate")),
        ("gradient norm", lambda run: run.value("gradient_norm")),
        ("loss scale", lambda run: run.log_ending_with("loss_scale")),
        ("skipped steps", lambda run: run.log_ending_with("skipped_steps")),
        ("rows per second", lambda run: run.rows_per_second()),
    ):
        lines = [Line(title if one else run.name, points(run), i) for i, run in enumerate(runs)]
        charts.append(line_chart(title, lines, whole=title in ("rows per second", "skipped steps")))
    if one:
        memory = [(line["epoch"] + 1.0, line["workers"][0]["memory"]) for line in runs[0].epochs]
        lines = []
        for i, kind in enumerate(_unique(kind for _, used in memory for kind in used)):
            points = [(x, used[kind] / 1e6) for x, used in memory if kind in used]
            lines.append(Line(kind, points, i // 2, kind.endswith("peak")))
        charts.append(line_chart("memory, MB", lines, whole=True))
    return "".join(charts)


def _time(run: Run) -> str:
    seconds, waited = run.seconds(), run.waited()
    parts = []
    for part, label in _PARTS.items():
        amount = seconds.get(part, 0.0)
        if part == "compute" and waited is not None and not run.restarts and waited < amount:
            parts.append(("waiting for the sum of gradients", waited, duration(waited)))
            amount -= waited
        if amount > 0:
            parts.append((label, amount, duration(amount)))
    included = waited is None and run.facts["strategy"]["replicas"] > 1
    note = "The sums over replicas are part of compute." if included else ""
    return shares("where the time went", parts, note)


def _workers(run: Run) -> str:
    """The last epoch, by worker and replica."""
    if not run.epochs:
        return ""
    last = run.epochs[-1]
    replicas = max(1, run.facts["strategy"]["replicas"] // len(last["workers"]))
    rows = []
    for index, worker in enumerate(last["workers"]):
        share = (last.get("rows_per_step") or 0) / len(last["workers"]) / replicas
        rate = worker["steps"] * share / last["elapsed"] if share and last["elapsed"] else None
        waited = worker.get("waited") or []
        times = [duration(worker["seconds"].get(part, 0.0)) for part in ("compute", "input", "callbacks")]
        rows += [
            [
                f"{index}",
                f"{index * replicas + replica}",
                number(rate),
                *times,
                duration(waited[replica]) if replica < len(waited) else "unknown",
                bytes_text(worker["memory"].get("host")),
            ]
            for replica in range(replicas)
        ]
    heads = ["worker", "replica", "rows per second", "compute", "input", "callbacks"]
    heads += ["waiting for sums (whole run)", "memory"]
    return _section("Workers and replicas, last epoch", _table(heads, rows))


def _facts(run: Run) -> str:
    blocks = []
    for name in _FACTS:
        rows = [[key, number(value)] for key, value in run.facts.get(name, {}).items()]
        blocks.append(f'<div class="box"><b>{name.capitalize()}</b>{_table([], rows)}</div>')
    if run.restarts:
        rows = [[_moment(r["time"]), r["machine"]["host"]] for r in run.restarts]
        blocks.append(f'<div class="box"><b>Restarts</b>{_table(["when", "where"], rows)}</div>')
    names = _unique(name for line in run.epochs for name in line["logs"])
    epochs = [
        [number(line["epoch"] + 1), *(number(line["logs"].get(name)) for name in names)]
        for line in run.epochs
    ]
    return (
        f'<section><h2>Facts</h2><div class="charts">{"".join(blocks)}</div>'
        f'<details class="box"><summary>Model summary</summary><pre>{html.escape(run.facts["summary"])}</pre></details>'
        f'<details class="box"><summary>Numbers of every epoch</summary><div class="scroll">'
        f"{_table(['epoch', *names], epochs)}</div></details></section>"
    )


def _differences(runs: Sequence[Run]) -> list[list[str]]:
    """The facts that are not the same in all runs, one row each."""
    flat = [
        {f"{part}: {key}": number(value) for part in _FACTS for key, value in run.facts.get(part, {}).items()}
        for run in runs
    ]
    rows = [
        [key, *(facts.get(key, "") for facts in flat)] for key in _unique(k for facts in flat for k in facts)
    ]
    return [row for row in rows if len(set(row[1:])) > 1]


def _section(title: str, body: str, kind: str = "scroll") -> str:
    return f'<section><h2>{html.escape(title)}</h2><div class="{kind}">{body}</div></section>' if body else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], escaped: bool = False) -> str:
    """An HTML table; `escaped`: the cells are HTML already."""
    clean = (lambda text: text) if escaped else html.escape
    head = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{clean(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if heads else ''}<tbody>{body}</tbody></table>"


def _moment(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
