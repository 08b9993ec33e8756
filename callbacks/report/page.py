"""The page answers in order: did the run learn, was it healthy, was it fast, and how can it be reproduced?"""

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...distribute.arguments import show
from ...distribute.hardware.device_memory import in_words
from ...distribute.objects import is_remote
from ...distribute.storage import local_path, storage_path
from ..monitoring.formatting import duration, moment, number
from ..safe_file import check_overwrite
from . import findings
from .charts import COLORS, chart_style, check_installed, metric_charts, other_charts, unique
from .runs import Run, find_runs

_TEMPLATE = Path(__file__).with_name("page.html")
_GENERATOR = '<meta name="generator" content="unisono.callbacks.TrainingReport">'
PAGE = re.compile(rb"\A[^\0]{0,1000}" + re.escape(_GENERATOR.encode()))  # the mark of a page of ours
_PARTS = {
    "compute": "compute",
    "input": "waiting for input",
    "callbacks": "callbacks",
    "validation": "validation",
    "other": "building the model, starting epochs",
    "report": "this report",
    "unaccounted": "not measured",
}
_MOST_REPLICAS = 4096  # of a worker: no real file has more
_SLOW = 0.2  # of the time of a worker, for which others may wait
_MOST_EPOCHS = 100  # rows of the table
_DESCRIBE = {
    "learning": findings.describe_learning,
    "health": findings.describe_health,
    "speed": findings.describe_speed,
    "setup": findings.describe_setup,
}
_FACTS = ("config", "strategy", "configuration", "model", "machine", "environment", "versions")


def compare_reports(paths: Any, output: str | os.PathLike[str] | None = None) -> Path:
    """Write a page about every run in `paths`, the best first, as `python -m unisono report` does.

    Args:
        paths: a path or a list of paths, of folders with the `.jsonl` files of `TrainingReport` or of such files; local
            or in a store, such as `s3://bucket/runs`.
        output: local path of the page; None: `report.html` in the first folder, or in the current one for a store.

    Returns:
        The path of the page.

    Raises:
        ValueError: a path does not exist, or is not a report.
        OSError: there are no numbers, or `output` cannot be written or is a file that is not a report.

    Examples:
        >>> page = unisono.callbacks.compare_reports(["report.jsonl"], "both.html")
    """
    return write_page(paths, output)[0]


def write_page(paths: Any, output: Any, argument: str = "`output`") -> tuple[Path, int]:
    """Write the page; return its path and the number of runs. `argument` is the name of `output` in an error."""
    check_installed()
    if isinstance(paths, str | os.PathLike) or is_remote(paths):
        paths = [paths]
    if not isinstance(paths, list | tuple) or not paths:
        raise ValueError(f"`paths` must be a path or a list of paths. Received: {show(paths)}")
    places = [storage_path("paths", each) for each in paths]
    page: Any = local_path("output", output, optional=True)
    for place in places:
        if not is_remote(place) and not place.exists():
            raise ValueError(f"`paths`: {place} does not exist.")
    if not (runs := [run for place in places for run in find_runs(place)]):
        names = ", ".join(map(str, places))
        raise FileNotFoundError(
            f"there are no numbers of a training run in {names}: TrainingReport writes them."
        )
    if page is None:
        first = places[0]
        page = (Path() if is_remote(first) else first if first.is_dir() else first.parent) / "report.html"
    check_overwrite(argument, page, PAGE)
    data = _render_or_name_the_run(runs)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_bytes(data)
    except OSError as error:
        raise OSError(f"{page} cannot be written ({error.strerror}): choose another output.") from error
    return page, len(runs)


def _render_or_name_the_run(runs: Sequence[Run]) -> bytes:
    """Render the page, or raise a ValueError that names the file whose lines say something else."""
    try:
        return render(runs).encode(errors="replace")
    except Exception as error:  # the lines may say anything
        if len(runs) == 1:
            said = f"{runs[0].path} is not a report of TrainingReport, or was changed"
            raise ValueError(f"{said} ({type(error).__name__}: {str(error)[:100]!a}).") from None
        for run in runs:
            _render_or_name_the_run([run])
        raise


def render(runs: Sequence[Run], refresh_seconds: float | None = None) -> str:
    """Return the page of one or several runs; a browser reloads it during a run every `refresh_seconds` (None: never)."""
    template = _template()
    runs = findings.sort_runs(runs)
    with chart_style():
        charts = other_charts(runs)
        values = {
            "title": runs[0].title if len(runs) == 1 else f"{len(runs)} training runs side by side",
            "refresh_seconds": refresh_seconds and max(2, round(refresh_seconds)),
            "runs": runs,
            "metrics": metric_charts(runs),
            "speed": [charts.pop(title) for title in ("samples per second",) if title in charts],
            "health": charts.values(),
        }
    if len(runs) == 1:
        run = runs[0]
        replicas = run.facts["strategy"]["replicas"] // (len(run.epochs[-1]["workers"]) if run.epochs else 1)
        if replicas > _MOST_REPLICAS:
            raise ValueError(f"{replicas} replicas of a worker")
        every = -(-len(run.epochs) // _MOST_EPOCHS) or 1
        lines = run.epochs[::-every][::-1]  # the last is always there
        values |= {
            "shares": _shares(run),
            "said": {topic: describe(run) for topic, describe in _DESCRIBE.items()},
            "slow_worker": slow_worker(run),
            "replicas": max(1, replicas),
            "facts": {name: run.facts.get(name, {}) for name in _FACTS},
            "lines": lines,
            "names": unique(name for line in lines for name in line["logs"]),
        }
    else:
        said = {"results": findings.describe_comparison(runs)}
        values |= {"said": said, "results": _results(runs), "differences": _differences(runs)}
    return template.render(values)


@functools.cache
def _template() -> Any:
    """Return the page, in which Jinja escapes every value."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

    environment.filters |= {"duration": duration, "moment": moment, "number": number, "size": in_words}
    environment.globals |= {"colors": COLORS, "generator": environment.filters["safe"](_GENERATOR)}
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def _shares(run: Run) -> list[tuple[str, float, float]]:
    """Return (what the time was used for, seconds, share of the whole)."""
    seconds, waited = run.seconds(), run.mean_wait()
    parts = {label: seconds.get(part, 0.0) for part, label in _PARTS.items()}
    if waited is not None and not run.restarts and waited < parts["compute"]:
        parts["compute"] -= waited
        parts = {"waiting for gradient synchronization": waited, **parts}
    total = sum(parts.values())
    return [(label, amount, amount / total) for label, amount in parts.items() if amount > 0]


def slow_worker(run: Run) -> str:
    """Return which worker the others wait for over a fifth of the epoch (it waits least itself), and why; else ""."""
    workers = run.epochs[-1]["workers"] if run.epochs else []
    if len(workers) < 2:
        return ""
    parts = ("input", "compute", "callbacks")
    spent = [[each["seconds"].get(part, 0.0) for part in parts] for each in workers]
    late = [given + called for given, _, called in spent]
    now, before = (_waits(line) for line in (run.epochs[-1], *run.epochs[-2:-1], {"workers": []})[:2])
    if len(now) == len(workers):  # counted since the process began, which a restart does again
        goes_on = len(before) == len(now) and all(b <= n for n, b in zip(now, before))
        late = [b - n for n, b in zip(now, before if goes_on else [0.0] * len(now))]
    slow = max(range(len(workers)), key=late.__getitem__)
    lost = late[slow] - (sum(late) - late[slow]) / (len(workers) - 1)
    share = lost / max(1e-9, sum(spent[slow]))
    if share <= _SLOW:
        return ""
    inputs = [given for given, _, _ in spent]
    own = inputs[slow] - (sum(inputs) - inputs[slow]) / (len(workers) - 1)
    why = "its input is slow" if own > lost / 2 else "its steps are: look for other programs on that machine"
    host = workers[slow].get("host", "an unknown host")
    return f"Worker {slow} on {host} makes the others wait for {share:.0%} of the epoch: {why}."


def _waits(line: dict[str, Any]) -> list[float]:
    """Return seconds for which each worker has waited for sums, where they are known."""
    return [max(each["waited"]) for each in line["workers"] if each.get("waited")]


def _results(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Name of a column -> a value for each run."""
    metrics = unique(
        name
        for run in runs
        for metric in run.metric_names()
        for name in (metric, f"val_{metric}")
        if name == metric or run.log(name, fine=False)
    )
    name, _ = findings.find_monitored(runs)
    best = [findings.lowest(findings.finite(run, name)) for run in runs]
    return {
        f"lowest {name}": [value if epoch else None for epoch, value in best],
        "in epoch": [int(epoch) or None for epoch, _ in best],
        "state": [run.how or "running or killed" for run in runs],
        "epochs": [run.epochs_done for run in runs],
        "time": [duration(run.now - run.began) for run in runs],
        "samples per second": [(run.samples_per_second() or [(0.0, None)])[-1][1] for run in runs],
        **{name: [run.last(name) for run in runs] for name in metrics},
    }


def _differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the facts that are not the same in all runs: name -> a value for each run."""
    values: dict[str, list[str]] = {}
    for i, run in enumerate(runs):
        for part in _FACTS:
            for key, value in run.facts.get(part, {}).items():
                values.setdefault(f"{part}: {key}", [""] * len(runs))[i] = number(value)
    return {key: each for key, each in values.items() if len(set(each)) > 1}
