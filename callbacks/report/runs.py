"""Runs, read from the JSON lines that `TrainingReport` writes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

Points = list[tuple[float, float]]


@dataclasses.dataclass
class Run:
    """One training.

    Attributes:
        name: str; of the file, without its ending.
        facts: what did not change: "title", "model", "strategy", "configuration", "versions", "machine", "summary".
        began: float; seconds since 1970.
        now: float; the time of the last line.
        how: how it ended; empty: it runs, or was killed.
        steps: the lines in mid-epoch.
        epochs: the lines of finished epochs.
        restarts: the lines with which later processes went on.
    """

    name: str
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    began: float = 0.0
    now: float = 0.0
    how: str = ""
    steps: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    epochs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    restarts: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def title(self) -> str:
        """What the user calls it."""
        return self.facts.get("title") or self.name

    def metric_names(self) -> list[str]:
        """Names of all metrics of training and validation, "val_" taken away, in order."""
        names: dict[str, None] = {}
        for line in [*self.steps, *self.epochs]:
            for name in line["logs"]:
                names[name.removeprefix("val_")] = None
        for other in ("learning_rate", *(n for n in names if n.endswith(("loss_scale", "skipped_steps")))):
            names.pop(other, None)
        return sorted(names, key=lambda name: (name != "loss", not name.endswith("loss")))

    def log(self, name: str, fine: bool = True) -> Points:
        """(epochs done, value) of one log; `fine`: with the values in mid-epoch."""
        return self._points(lambda line: line["logs"].get(name), fine)

    def value(self, name: str) -> Points:
        """(epochs done, value) of "learning_rate" or "gradient_norm"."""
        return self._points(lambda line: line.get(name), fine=True)

    def rows_per_second(self) -> Points:
        """(epochs done, rows a second over the epoch), validation and callbacks included."""
        points = []
        for line in self.epochs:
            if line.get("rows_per_step") and line.get("elapsed"):
                points.append((line["epoch"] + 1.0, line["steps"] * line["rows_per_step"] / line["elapsed"]))
        return points

    def seconds(self) -> dict[str, float]:
        """Seconds of worker 0 in each part of its work, over all epochs."""
        total: dict[str, float] = {}
        for line in self.epochs:
            for part, value in line["workers"][0]["seconds"].items():
                total[part] = total.get(part, 0.0) + value
        return total

    def waited(self) -> float | None:
        """Mean seconds that a replica of worker 0 waited for sums since the process began; None: not known."""
        waited = self.epochs[-1]["workers"][0].get("waited") if self.epochs else None
        return sum(waited) / len(waited) if waited else None

    def _points(self, value: Any, fine: bool) -> Points:
        lines = sorted([*(self.steps if fine else ()), *self.epochs], key=self._position)
        points: dict[float, float] = {}
        for line in lines:
            number = value(line)
            if number is not None:
                points[self._position(line)] = float(number)
        return list(points.items())

    def _position(self, line: dict[str, Any]) -> float:
        if line["event"] == "epoch":
            return line["epoch"] + 1.0
        length = line.get("steps_per_epoch") or self._length_of(line["epoch"])
        return line["epoch"] + min(1.0, line["step"] / max(1, length))

    def _length_of(self, epoch: int) -> int:
        """Steps of an epoch of an input of unknown length: as it turned out, or the most that were seen."""
        ended = [line["step"] for line in self.epochs if line["epoch"] == epoch]
        return max(ended or [line["step"] for line in self.steps if line["epoch"] == epoch] or [1])


def read_run(path: Path) -> Run:
    """The run whose lines are in `path`; a last line that was cut off in its middle is left out.

    Raises:
        ValueError: the file holds something else.
    """
    run = Run(path.stem)
    lines = path.read_bytes().split(b"\n")
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            event = line["event"]
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is no line of a training report.") from None
        run.now = line["time"]
        _take(run, event, line)
    if not run.facts:
        raise ValueError(f"{path} holds no training: its first line must be that of TrainingReport.")
    return run


def _take(run: Run, event: str, line: dict[str, Any]) -> None:
    if event in ("begin", "restart"):
        if not run.facts:
            run.began = line["time"]
        if event == "restart":
            run.restarts.append(line)
        run.facts = {key: value for key, value in line.items() if key not in ("event", "time")}
        run.how = ""
    elif event == "step":
        run.steps.append(line)
    elif event == "epoch":
        run.epochs.append(line)
    elif event == "end":
        run.how = line["how"]


def find_runs(folder: Path) -> list[Run]:
    """Every run under `folder` (or in the file `folder`), by the time when it began; other .jsonl files are passed over."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.jsonl"))
    runs = []
    for path in files:
        try:
            run = read_run(path)
        except ValueError:
            if folder.is_file():
                raise
            continue
        if path != folder:
            place = path.relative_to(folder)
            run.name = str(
                place.parent if place.stem == "report" and place.parent.name else place.with_suffix("")
            )
        runs.append(run)
    return sorted(runs, key=lambda run: run.began)


def finite(points: Points) -> Points:
    """The points that can be drawn."""
    return [(x, y) for x, y in points if math.isfinite(y)]
