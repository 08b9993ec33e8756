"""Runs, read from the JSON lines that `TrainingReport` writes."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from ...distribute.objects import names_below
from ..safe_file import read_plain

_MOST_BYTES = 1 << 28

Points = list[tuple[float, float]]


@dataclasses.dataclass
class Run:
    """One training."""

    name: str  # of the file, without its suffix
    # What does not change: "title", "config" and "notes" of the user, "model", "strategy", "configuration", "versions",
    # "machine", "summary".
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    began: float = 0.0  # seconds since 1970
    now: float = 0.0  # the time of the last line
    how: str = ""  # how it ended; empty: it is running, or was killed
    # The lines within epochs, and of finished ones.
    lines: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    epochs: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # the lines of finished epochs
    path: Any = None  # of the file, local or in a store
    # The first lines of the processes that resumed it.
    restarts: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        """Take one more line."""
        event = line["event"]
        self.now = line["time"]
        if event in ("begin", "restart"):
            self.began = self.began if self.facts else line["time"]
            self.facts = {key: value for key, value in line.items() if key not in ("event", "time")}
            self.restarts += [line] * (event == "restart")
        if event in ("step", "epoch"):
            self.lines.append(line)
            self.epochs += [line] * (event == "epoch")
        self.how = line["how"] if event == "end" else ""

    @property
    def title(self) -> str:
        """What the user calls it."""
        return self.facts.get("title") or self.name

    @property
    def epochs_done(self) -> int:
        """Epochs that have ended."""
        return self.epochs[-1]["epoch"] + 1 if self.epochs else 0

    @property
    def epoch_steps(self) -> int | None:
        """Steps of every epoch; None if they differ or are unknown."""
        lengths = {line["step"] for line in self.epochs} or {line["steps_per_epoch"] for line in self.lines}
        return lengths.pop() if len(lengths) == 1 else None

    def first_epochs(self) -> set[int]:
        """Return the first epoch of each process, which compiles the step."""
        begins = [self.began, *(each["time"] for each in self.restarts)]
        firsts = (next((e for e in self.epochs if e["time"] >= begin), None) for begin in begins)
        return {line["epoch"] for line in firsts if line}

    def metric_names(self) -> list[str]:
        """Return the names of all metrics of training and validation, without "val_", in order."""
        names = {name.removeprefix("val_"): None for line in self.lines for name in line["logs"]}
        others = ("loss_scale", "skipped_steps")
        metrics = (name for name in names if name != "learning_rate" and not name.endswith(others))
        return sorted(metrics, key=lambda name: (name != "loss", not name.endswith("loss")))

    def log(self, name: str, fine: bool = True) -> Points:
        """Return (epochs done, value) of one log; `fine`: including the values within epochs."""
        return self._points((line, line["logs"].get(name)) for line in (self.lines if fine else self.epochs))

    def recent(self, name: str) -> Points:
        """Return (epochs done, value) of one log within epochs: its mean over the steps since the previous line.

            running mean m after a steps, n after b steps:    mean of the steps between = (b n - a m) / (b - a)

        A log that is not a mean has its value so far in the epoch.
        """
        points: Points = []
        epoch, steps, total = -1, 0, 0.0
        for line in self.lines:
            if name not in line.get("means", ()):
                continue
            if line["epoch"] != epoch:
                epoch, steps, total = line["epoch"], 0, 0.0
            if line["step"] > steps:
                now = line["step"] * float(line["logs"][name])
                points.append((self._position(line), (now - total) / (line["step"] - steps)))
                steps, total = line["step"], now
        within = any(name in line["logs"] for line in self.lines if line["event"] == "step")
        return points or (self.log(name) if within else [])

    def log_ending_with(self, suffix: str) -> Points:
        """Return the log whose name ends so; of several (one for each optimizer) the first."""
        names = {name for line in self.lines for name in line["logs"] if name.endswith(suffix)}
        return self.log(min(names)) if names else []

    def last(self, name: str) -> float | None:
        """Return the value of a log at the end of the last epoch; None if there is none."""
        points = self.log(name, fine=False)
        return points[-1][1] if points else None

    def value(self, name: str) -> Points:
        """Return (epochs done, value) of "learning_rate" or "gradient_norm"."""
        return self._points((line, line.get(name)) for line in self.lines)

    def samples_per_second(self) -> Points:
        """Return (epochs done, samples per second over the epoch), validation and callbacks included."""
        return [
            (line["epoch"] + 1.0, line["steps"] * line["rows_per_step"] / line["elapsed"])
            for line in self.epochs
            if line.get("rows_per_step") and line.get("elapsed")
        ]

    def seconds(self) -> dict[str, float]:
        """Return seconds of worker 0 in each part of its work, over all epochs.

        "report", what the report itself took, is not counted as "callbacks". "unaccounted" is the rest of the time from the
        first line to the last; a restarted run has none, because nobody knows how long it did not run.
        """
        total: dict[str, float] = {}
        for line in self.epochs:
            for part, value in line["workers"][0]["seconds"].items():
                total[part] = total.get(part, 0.0) + value
        own = sum(line.get("report_seconds", 0.0) for line in self.epochs)
        if own := min(own, total.get("callbacks", 0.0)):
            total["callbacks"] -= own
            total["report"] = own
        if not self.restarts:
            total["unaccounted"] = max(0.0, self.now - self.began - sum(total.values()))
        return total

    def mean_wait(self) -> float | None:
        """Return mean seconds that a replica of worker 0 has waited for sums since the process began; None: unknown."""
        waited = self.epochs[-1]["workers"][0].get("waited") if self.epochs else None
        return sum(waited) / len(waited) if waited else None

    def _points(self, values: Iterable[tuple[dict[str, Any], Any]]) -> Points:
        points = {self._position(line): float(value) for line, value in values if value is not None}
        return list(points.items())

    def _position(self, line: dict[str, Any]) -> float:
        """Return epochs done; the length of an epoch of an input of unknown length is the most steps seen of it."""
        if line["event"] == "epoch":
            return line["epoch"] + 1.0
        steps = (other["step"] for other in self.lines if other["epoch"] == line["epoch"])
        return line["epoch"] + min(1.0, line["step"] / max(1, line.get("steps_per_epoch") or max(steps)))


def read_run(path: Any) -> Run:
    """Return the run whose lines are in `path`; an incomplete last line is left out; reject anything else."""
    run = Run(path.stem, path=path)
    try:
        data = read_plain(path, _MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error}).") from None
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path} is too large for a report: it has more than {_MOST_BYTES:,} bytes.")
    lines = data.split(b"\n")
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            run.add(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is not a line of a training report.") from None
    if not run.facts:
        raise ValueError(f"{path} contains no training run: TrainingReport must have written its first line.")
    return run


def find_runs(folder: Any) -> list[Run]:
    """Return the runs in the .jsonl files below `folder`, or in one file, by start time; raise a ValueError if none."""
    runs, problems = [], []
    for name in sorted(names_below(folder, ".jsonl")):
        try:
            runs.append(read_run(folder / name if name else folder))
        except ValueError as error:
            problems.append(error)
            continue
        place = PurePosixPath(name or folder.name)
        holder = str(place.parent) if place.parent.name else (folder if name else folder.parent).name
        runs[-1].name = holder if holder and place.stem == "report" else str(place.with_suffix(""))
    if problems and not runs:
        raise problems[0]
    return sorted(runs, key=lambda run: run.began)
