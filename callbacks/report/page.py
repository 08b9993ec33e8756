"""The page answers in order: did the run learn, was it healthy, was it fast, and how can it be reproduced?"""

from __future__ import annotations

import datetime
import html
from collections.abc import Sequence
from pathlib import Path

from ...distribute.hardware.device_memory import in_words
from ..monitoring.formatting import duration, number
from ..safe_file import open_plain
from .charts import breakable, shares
from .curves import metric_curves, other_curves, unique
from .runs import Run
from .style import SCRIPT, STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_GENERATOR = '<meta name="generator" content="unisono.callbacks.TrainingReport">'
_PARTS = {
    "compute": "compute",
    "input": "waiting for input",
    "callbacks": "callbacks",
    "validation": "validation",
    "other": "building the model, starting epochs",
    "report": "this report",
    "unaccounted": "not measured",
}
_NEWS_SECONDS = 60.0  # a run that is at work and has written nothing for so long is said to be without news
_MOST_REPLICAS = 4096  # of a worker: no real file has more
_MOST_EPOCHS = 100  # rows of the table
_FACTS = ("strategy", "configuration", "model", "machine", "environment", "versions")


class Html(str):
    """Text that is HTML already; any other is escaped."""


def is_page(path: Path) -> bool:
    """Whether a file was made by `render`."""
    with open_plain(path) as stream:
        return _GENERATOR.encode() in stream.read(1024)


def render(runs: Sequence[Run], refresh_seconds: float | None = None) -> str:
    """The whole page, for one run or several side by side.

    While a single run is in progress the browser reloads it every `refresh_seconds`; None: never.
    """
    one = len(runs) == 1
    title = runs[0].title if one else f"{len(runs)} training runs"
    refresh = ""
    if one and refresh_seconds and not runs[0].how:
        refresh = f'<meta http-equiv="refresh" content="{max(2, round(refresh_seconds))}">'
    body = _one(runs[0]) if one else _several(runs)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{_GENERATOR}'
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
        f"</span></p></header>{_tiles(run)}{_curves([run], _time(run))}{_workers(run)}{_facts(run)}"
    )


def _curves(runs: Sequence[Run], time: str = "") -> str:
    charts = other_curves(runs)
    speed = charts.pop("samples per second")
    return (
        f"{_section('Did it learn?', metric_curves(runs), '')}"
        f"{_section('Is it healthy?', ''.join(charts.values()), 'charts')}"
        f"{_section('Was it fast?', speed + time, 'cards')}"
    )


def _patience(run: Run) -> float:
    """Seconds after which a run that is at work should have written another line."""
    longest = max((line.get("elapsed") or 0.0 for line in run.epochs), default=0.0)
    return max(_NEWS_SECONDS, 3 * longest)


def _several(runs: Sequence[Run]) -> str:
    metrics = unique(
        name
        for run in runs
        for metric in run.metric_names()
        for name in (metric, f"val_{metric}")
        if name == metric or run.log(name, fine=False)
    )
    names = [Html(f'<i class="key c{i % 8}"></i>{html.escape(run.name)}') for i, run in enumerate(runs)]
    columns = {
        "state": [run.how or "running or killed" for run in runs],
        "epochs": [number(run.epochs_done) for run in runs],
        "time": [duration(run.now - run.began) for run in runs],
        "samples per second": [number((run.samples_per_second() or [(0.0, None)])[-1][1]) for run in runs],
        **{name: [number(run.last(name)) for run in runs] for name in metrics},
    }
    if len(columns) > len(runs) and len(runs) <= 6:  # the longer side of the table goes down
        results = _table(["", *names], [[name, *values] for name, values in columns.items()], "numbers")
    else:
        rows = [[name, *values] for name, *values in zip(names, *columns.values())]
        results = _table(["run", *columns], rows, "numbers")
    differences = _differences(runs)
    different = _table(["", *names], differences) if differences else "<p>Nothing.</p>"
    return (
        f"<header><h1>{len(runs)} training runs side by side</h1></header>"
        f"{_section('Results', results)}"
        f"{_section('Different settings', different)}{_curves(runs)}"
    )


def _tiles(run: Run) -> str:
    """What is asked first. A metric is followed by its validation."""
    tiles = [(f"{run.epochs_done:,} of {number(run.facts['configuration']['epochs'])}", "epochs done")]
    for name in run.metric_names()[:3]:
        training, validation = run.log(name, fine=not run.epochs), run.last(f"val_{name}")
        if training:
            suffix = "" if validation is None else f" (validation {number(validation)})"
            tiles.append((number(training[-1][1]), f"{name}{suffix}"))
    rates = run.samples_per_second()
    if rates:
        tiles.append((number(rates[-1][1]), "samples per second"))
    tiles.append((number(run.facts["strategy"]["replicas"]), "replicas"))
    tiles.append((number(run.facts["model"]["trainable parameters"]), "trainable parameters"))
    boxes = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{breakable(label)}</span></div>'
        for value, label in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def _time(run: Run) -> str:
    seconds, waited = run.seconds(), run.waited()
    parts = []
    for part, label in _PARTS.items():
        amount = seconds.get(part, 0.0)
        if part == "compute" and waited is not None and not run.restarts and waited < amount:
            parts.append(("waiting for gradient synchronization", waited, duration(waited)))
            amount -= waited
        if amount > 0:
            parts.append((label, amount, duration(amount)))
    included = waited is None and run.facts["strategy"]["replicas"] > 1
    note = "Gradient synchronization is part of compute." if included else ""
    return shares("where the time went", parts, note)


def _workers(run: Run) -> str:
    """The last epoch, by worker and replica."""
    if not run.epochs:
        return ""
    last = run.epochs[-1]
    replicas = max(1, run.facts["strategy"]["replicas"] // len(last["workers"]))
    if replicas > _MOST_REPLICAS:
        raise ValueError(f"{replicas} replicas of a worker")
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
                in_words(worker["memory"]["host"]) if worker["memory"].get("host") else "",
            ]
            for replica in range(replicas)
        ]
    heads = ["worker", "replica", "samples per second", "compute", "input", "callbacks"]
    heads += ["waiting for synchronization (whole run)", "memory"]
    return _section("Workers and replicas, last epoch", _table(heads, rows, "numbers"))


def _facts(run: Run) -> str:
    blocks = []
    for name in _FACTS:
        rows = [[Html(breakable(key)), number(value)] for key, value in run.facts.get(name, {}).items()]
        blocks.append(f'<div class="box"><b>{name.capitalize()}</b>{_table([], rows)}</div>')
    if run.restarts:
        rows = [[_moment(r["time"]), r["machine"]["host"]] for r in run.restarts]
        blocks.append(f'<div class="box"><b>Restarts</b>{_table(["when", "where"], rows)}</div>')
    every = -(-len(run.epochs) // _MOST_EPOCHS) or 1
    lines = run.epochs[::-every][::-1]  # the last is always there
    names = unique(name for line in lines for name in line["logs"])
    epochs = [
        [number(line["epoch"] + 1), *(number(line["logs"].get(name)) for name in names)] for line in lines
    ]
    return (
        f'<section><h2>Can I reproduce it?</h2><div class="cards">{"".join(blocks)}</div>'
        f'<details class="box"><summary>Model summary</summary><pre>{html.escape(run.facts["summary"])}</pre></details>'
        f'<details class="box"><summary>Logs of {len(lines)} of {len(run.epochs):,} epochs (the .jsonl file has all)'
        f'</summary><div class="scroll">'
        f"{_table(['epoch', *names], epochs, 'numbers')}</div></details></section>"
    )


def _differences(runs: Sequence[Run]) -> list[list[str]]:
    """The facts that are not the same in all runs."""
    flat = [
        {f"{part}: {key}": number(value) for part in _FACTS for key, value in run.facts.get(part, {}).items()}
        for run in runs
    ]
    rows = [
        [key, *(facts.get(key, "") for facts in flat)] for key in unique(k for facts in flat for k in facts)
    ]
    return [row for row in rows if len(set(row[1:])) > 1]


def _text(value: str) -> str:
    """A text as HTML."""
    return value if isinstance(value, Html) else html.escape(value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """An HTML table. With heads, each cell also has that of its column, for narrow windows."""
    head = "".join(f"<th>{_text(h)}</th>" for h in heads)
    # Without the mark of a run's colour.
    names = [h.rpartition(">")[2] if isinstance(h, Html) else h for h in heads]
    labels = [f' data-label="{html.escape(name)}"' for name in names]
    body = "".join(
        "<tr>"
        + "".join(f"<td{labels[i] if heads else ''}>{_text(cell)}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    kind = " ".join(filter(None, ["stacked" if heads else "", kind]))
    opening = f'<table class="{kind}">' if kind else "<table>"
    return f"{opening}{f'<thead><tr>{head}</tr></thead>' if heads else ''}<tbody>{body}</tbody></table>"


def _section(title: str, body: str, kind: str = "scroll") -> str:
    return f'<section><h2>{html.escape(title)}</h2><div class="{kind}">{body}</div></section>' if body else ""


def _moment(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
