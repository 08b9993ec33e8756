"""The page: what a reader wants to know first, then the curves, then the tables."""

from __future__ import annotations

import datetime
import html
from collections.abc import Sequence
from typing import Any

from .charts import Line, line_chart, shares
from .formatting import bytes_text, duration, number, table
from .runs import Run
from .style import SCRIPT, STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_PARTS = {
    "compute": "compute",
    "input": "waiting for input",
    "callbacks": "callbacks",
    "validation": "validation",
    "other": "beginning epochs, building",
}


def render(runs: Sequence[Run], refresh_seconds: float | None = None) -> str:
    """The whole page as text.

    Args:
        runs: one run, or several to lay side by side.
        refresh_seconds: float; while a single run is under way the browser loads the page again so often. None: never.
    """
    one = len(runs) == 1
    title = runs[0].title if one else f"{len(runs)} trainings"
    running = one and not runs[0].how
    refresh = (
        f'<meta http-equiv="refresh" content="{max(2, round(refresh_seconds))}">'
        if running and refresh_seconds
        else ""
    )
    body = _one(runs[0]) if one else _several(runs)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">{refresh}'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"{body}<script>{SCRIPT}</script></body></html>\n"
    )


def _one(run: Run) -> str:
    sections = [
        f"<header><h1>{html.escape(run.title)}</h1><p>{_state(run)}</p></header>",
        _tiles(run),
        _section("Curves", _charts([run]), "charts"),
        _section("Time", _time(run), "charts"),
        _workers(run),
        _facts(run),
    ]
    return "".join(sections)


def _several(runs: Sequence[Run]) -> str:
    rows = [
        [
            f'<i class="key c{i % 8}"></i>{html.escape(run.name)}',
            html.escape(run.how or "running or killed"),
            number(run.epochs[-1]["epoch"] + 1 if run.epochs else 0),
            duration(run.now - run.began),
            *(_last(run, name) for name in _metric_columns(runs)),
        ]
        for i, run in enumerate(runs)
    ]
    heads = ["run", "state", "epochs", "time", *_metric_columns(runs)]
    differences = _differences(runs)
    different = table(["", *(run.name for run in runs)], differences) if differences else "<p>Nothing.</p>"
    return (
        f"<header><h1>{len(runs)} trainings side by side</h1></header>"
        f"{_section('Results', table(heads, rows, escaped=True))}"
        f"{_section('Curves', _charts(runs), 'charts')}"
        f"{_section('What is different in their configuration', different)}"
    )


def _section(title: str, body: str, kind: str = "scroll") -> str:
    return f'<section><h2>{html.escape(title)}</h2><div class="{kind}">{body}</div></section>' if body else ""


def _state(run: Run) -> str:
    began = datetime.datetime.fromtimestamp(run.began)
    state = run.how or "running"
    restarts = f", {len(run.restarts)} restart{'s' * (len(run.restarts) > 1)}" if run.restarts else ""
    return (
        f'<span class="state">{html.escape(state)}</span> <span class="dim">began {began:%Y-%m-%d %H:%M:%S}, '
        f"{duration(run.now - run.began)} until the last number{restarts}</span>"
    )


def _tiles(run: Run) -> str:
    tiles = []
    epochs = run.facts["configuration"]["epochs"]
    tiles.append((f"{run.epochs[-1]['epoch'] + 1 if run.epochs else 0} of {epochs}", "epochs done"))
    for name in run.metric_names()[:3]:
        for key, label in ((name, name), (f"val_{name}", f"{name}, validation")):
            points = run.log(key, fine=not key.startswith("val_"))
            if points:
                tiles.append((number(points[-1][1]), label))
    rows = run.rows_per_second()
    if rows:
        tiles.append((number(rows[-1][1]), "rows a second"))
    tiles.append((number(run.facts["strategy"]["replicas"]), "replicas"))
    tiles.append((number(run.facts["model"]["trainable parameters"]), "trainable parameters"))
    boxes = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
        for value, label in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def _charts(runs: Sequence[Run]) -> str:
    """The curves; for one run the colour tells training from validation, for several the run."""
    one = len(runs) == 1
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(run.metric_names()))
    charts = []
    for name in names:
        lines = []
        for i, run in enumerate(runs):
            lines.append(Line("training" if one else run.name, run.log(name), i))
            validation = run.log(f"val_{name}", fine=False)
            label = "validation" if one else f"{run.name}, validation"
            lines.append(Line(label, validation, 1 if one else i, dashed=True))
        charts.append(line_chart(name, lines))
    for title, points in (
        ("learning rate", lambda run: run.value("learning_rate")),
        ("gradient norm", lambda run: run.value("gradient_norm")),
        ("loss scale", lambda run: _suffixed(run, "loss_scale")),
        ("skipped steps", lambda run: _suffixed(run, "skipped_steps")),
        ("rows a second", lambda run: run.rows_per_second()),
    ):
        lines = [Line(title if one else run.name, points(run), i) for i, run in enumerate(runs)]
        charts.append(line_chart(title, lines, whole=title in ("rows a second", "skipped steps")))
    if one:
        charts.append(_memory(runs[0]))
    return "".join(charts)


def _suffixed(run: Run, suffix: str) -> Any:
    """The log of that name; of several optimizers the first."""
    names = {n for line in [*run.steps, *run.epochs] for n in line["logs"] if n.endswith(suffix)}
    return run.log(min(names)) if names else []


def _memory(run: Run) -> str:
    kinds: dict[str, None] = {}
    for line in run.epochs:
        kinds.update(dict.fromkeys(line["workers"][0]["memory"]))
    lines = []
    for i, kind in enumerate(kinds):
        points = [
            (line["epoch"] + 1.0, line["workers"][0]["memory"][kind] / 1e6)
            for line in run.epochs
            if kind in line["workers"][0]["memory"]
        ]
        lines.append(Line(kind, points, i // 2, dashed=kind.endswith("peak")))
    return line_chart("memory, MB", lines, whole=True)


def _time(run: Run) -> str:
    seconds = run.seconds()
    waited = run.waited()
    parts = []
    for part, label in _PARTS.items():
        amount = seconds.get(part, 0.0)
        if part == "compute" and waited is not None and len(run.restarts) == 0 and waited < amount:
            parts.append(("waiting for the sum of gradients", waited, duration(waited)))
            amount -= waited
        if amount > 0:
            parts.append((label, amount, duration(amount)))
    bar = shares("where the time went", parts)
    if bar and waited is None and run.facts["strategy"]["replicas"] > 1:
        bar = bar.replace(
            "</figure>", '<p class="note">The sums over replicas are part of compute.</p></figure>'
        )
    return bar


def _workers(run: Run) -> str:
    """The last epoch, by worker and replica."""
    if not run.epochs:
        return ""
    last = run.epochs[-1]
    replicas = max(1, run.facts["strategy"]["replicas"] // len(last["workers"]))
    rows = []
    for index, worker in enumerate(last["workers"]):
        seconds = worker["seconds"]
        share = (last.get("rows_per_step") or 0) / len(last["workers"]) / replicas
        rate = worker["steps"] * share / last["elapsed"] if share and last["elapsed"] else None
        waited = worker.get("waited")
        for replica in range(replicas):
            rows.append(
                [
                    f"{index}",
                    f"{index * replicas + replica}",
                    "" if rate is None else number(rate),
                    duration(seconds.get("compute", 0.0)),
                    duration(seconds.get("input", 0.0)),
                    duration(seconds.get("callbacks", 0.0)),
                    duration(waited[replica]) if waited and replica < len(waited) else "not known",
                    bytes_text(worker["memory"].get("host")),
                ]
            )
    heads = [
        "worker",
        "replica",
        "rows a second",
        "compute",
        "input",
        "callbacks",
        "waited for sums (whole run)",
        "memory",
    ]
    return _section("Workers and replicas, last epoch", table(heads, rows))


def _facts(run: Run) -> str:
    blocks = []
    for name in ("strategy", "configuration", "model", "machine", "versions"):
        rows = [[key, number(value)] for key, value in run.facts[name].items()]
        blocks.append(f'<div class="box"><b>{name.capitalize()}</b>{table([], rows)}</div>')
    if run.restarts:
        rows = [
            [f"{datetime.datetime.fromtimestamp(r['time']):%Y-%m-%d %H:%M:%S}", r["machine"]["host"]]
            for r in run.restarts
        ]
        blocks.append(f'<div class="box"><b>Restarts</b>{table(["when", "where"], rows)}</div>')
    summary = html.escape(run.facts["summary"])
    return (
        f'<section><h2>Facts</h2><div class="charts">{"".join(blocks)}</div>'
        f'<details class="box"><summary>Summary of the model</summary><pre>{summary}</pre></details>'
        f'<details class="box"><summary>Numbers of every epoch</summary><div class="scroll">{_epochs(run)}</div>'
        "</details></section>"
    )


def _epochs(run: Run) -> str:
    names: dict[str, None] = {}
    for line in run.epochs:
        names.update(dict.fromkeys(line["logs"]))
    rows = [
        [number(line["epoch"] + 1), *(number(line["logs"].get(name)) for name in names)]
        for line in run.epochs
    ]
    return table(["epoch", *names], rows)


def _metric_columns(runs: Sequence[Run]) -> list[str]:
    names: dict[str, None] = {}
    for run in runs:
        for name in run.metric_names():
            names[name] = None
            if run.log(f"val_{name}", fine=False):
                names[f"val_{name}"] = None
    return list(names)


def _last(run: Run, name: str) -> str:
    points = run.log(name, fine=False)
    return number(points[-1][1]) if points else ""


def _differences(runs: Sequence[Run]) -> list[list[str]]:
    """The facts that are not the same in all runs, one row each."""
    flat = [
        {
            f"{section}: {key}": number(value)
            for section in ("configuration", "strategy", "model", "machine", "versions")
            for key, value in run.facts[section].items()
        }
        for run in runs
    ]
    keys = dict.fromkeys(key for facts in flat for key in facts)
    rows = [[key, *(facts.get(key, "") for facts in flat)] for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]
