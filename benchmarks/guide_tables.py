"""Runs the benchmarks of the guides one after the other and writes their tables: `python -m benchmarks --write`."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from .tables import tables_in, with_tables

GUIDES = pathlib.Path(__file__).resolve().parent.parent / "docs"


class Benchmark(NamedTuple):
    """A benchmark that makes tables of the guides.

    Attributes:
        module: its name in `benchmarks`; "" is the comparison of frameworks.
        tables: names of the tables that it writes.
        minutes: approximate duration on two cores; after three times as long it is killed.
        arguments: command-line arguments.
        quick: command-line arguments for a trial of one or two minutes.
    """

    module: str
    tables: tuple[str, ...]
    minutes: int
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


SPEED = (
    "speed_arrays_1",
    "speed_arrays_2",
    "speed_arrays_4",
    "speed_dataset_1",
    "speed_aims",
    "speed_growth",
)
BENCHMARKS = (
    Benchmark(
        "",
        SPEED,
        40,
        ("--guide",),
        ("--guide", "--models", "mlp", "--contestants", "ours,tf_graph,keras", "--rounds", "1")
        + ("--starts", "1", "--scale", "0.02", "--out", "bench/try"),
    ),
    Benchmark("step_logs", ("step_logs",), 3, quick=("1",)),
    Benchmark("user_code", ("user_code",), 3, quick=("2",)),
    Benchmark("evaluate_predict", ("evaluate_predict",), 4, quick=("1",)),
    Benchmark("short_fits", ("short_fits",), 8, quick=("1",)),
    Benchmark("start", ("start",), 25, ("1",), quick=("1", "transformer")),
    Benchmark("many_variables", ("many_variables",), 8, quick=("1", "32 hidden layers")),
    Benchmark("cnn_kernels", ("cnn_kernels",), 2, quick=("40",)),
    Benchmark("cnn_settings", ("cnn_settings",), 8, quick=("1",)),
    Benchmark("feeding", ("feeding",), 10, quick=("2000",)),
    Benchmark(
        "progress_cost", ("progress_cost",), 4, ("--rounds", "20"), ("--rounds", "2", "--steps", "400")
    ),
    Benchmark(
        "backup_stall", ("backup_stall",), 4, ("--seconds", "40"), quick=("--seconds", "6", "--every", "2")
    ),
    Benchmark("workers_efficiency", ("workers_efficiency",), 10, quick=("--rounds", "1", "--steps", "10")),
    Benchmark(
        "workers_efficiency",
        ("workers_efficiency_25",),
        10,
        ("--mbyte", "25", "--steps", "20", "--only", "ours,tensorflow,torch"),
        ("--mbyte", "25", "--steps", "10", "--only", "ours", "--rounds", "1"),
    ),
    Benchmark(
        "workers_efficiency",
        ("all_reduce_limit",),
        10,
        ("--what", "limits"),
        ("--what", "limits", "--rounds", "1", "--steps", "5", "--only", "bare_1,bare_gather"),
    ),
    Benchmark(
        "workers_efficiency",
        ("all_reduce_limit_25",),
        10,
        ("--what", "limits", "--mbyte", "25", "--steps", "20"),
        (
            "--what",
            "limits",
            "--mbyte",
            "25",
            "--steps",
            "5",
            "--rounds",
            "1",
            "--only",
            "bare_1,bare_gather",
        ),
    ),
    Benchmark("scaling_check", ("scaling_check",), 5, quick=("--workers", "2")),
    Benchmark("mixed_memory", ("mixed_memory",), 3, quick=("--samples", "4096", "--layers", "4")),
    Benchmark("rematerialization", ("rematerialization",), 2, quick=("--rounds", "1")),
    Benchmark(
        "sharded_state",
        ("sharded_state",),
        20,
        quick=("--megabytes", "20", "--workers", "2", "--accumulation", "1", "--rounds", "1", "--steps", "2"),
    ),
    Benchmark(
        "parameter_servers",
        ("parameter_servers", "parameter_servers_slowed"),
        10,
        ("--steps", "1000"),
        quick=("--steps", "100", "--workers", "1"),
    ),
    Benchmark("pipeline_memory", ("pipeline_memory",), 5, quick=("--stages", "1", "2", "--megabytes", "4")),
    Benchmark(
        "pipeline_speed",
        ("pipeline_speed",),
        5,
        quick=("--micro-batches", "1", "4", "--width", "128", "--steps", "2", "--repeats", "1"),
    ),
)


def write(names: Sequence[str], only_try: bool = False) -> int:
    """Measures the tables `names` (all if empty) and writes them into the guides; returns an exit status.

    A benchmark that fails or takes too long leaves its tables unchanged and is reported at the end.

    `only_try`: use small settings and write nothing.
    """
    chosen = [b for b in BENCHMARKS if not names or set(names) & set(b.tables)]
    unknown = set(names).difference(*(b.tables for b in BENCHMARKS))
    if unknown:
        known = ", ".join(table for b in BENCHMARKS for table in b.tables)
        print(f"unknown table {', '.join(sorted(unknown))}: choose from {known}", file=sys.stderr)
        return 2
    if not only_try:
        print(f"{len(chosen)} benchmarks, about {sum(b.minutes for b in chosen)} minutes", flush=True)
    failed = []
    for benchmark in chosen:
        began = time.perf_counter()
        found = {n: table for n, table in run(benchmark, only_try).items() if not names or n in names}
        missing = [name for name in benchmark.tables if name not in found and (not names or name in names)]
        failed += missing
        if not only_try:
            replace(found)
        result = f"{'made' if only_try else 'written'}: {', '.join(found) or 'nothing'}"
        if missing:
            result += f"; not measured: {', '.join(missing)}"
        print(
            f"{time.perf_counter() - began:6.0f} s  {benchmark.module or 'benchmarks'}: {result}", flush=True
        )
    if failed:
        state = "not made" if only_try else "unchanged"
        print(f"these tables are {state}: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(benchmark: Benchmark, only_try: bool = False) -> dict[str, str]:
    """Runs a benchmark and returns the tables that it printed; if it fails, prints the end of its errors."""
    module = f"benchmarks.{benchmark.module}" if benchmark.module else "benchmarks"
    arguments = benchmark.quick if only_try else benchmark.arguments
    command = [sys.executable, "-m", module, *arguments]
    limit = 600 if only_try else 180 * benchmark.minutes
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, **pipes)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += f"\n{module} took more than {limit} s"
    if process.returncode:
        print(f"{module} ended with status {process.returncode}:\n{err[-2000:]}", file=sys.stderr, flush=True)
    return tables_in(out)


def replace(tables: dict[str, str]) -> None:
    """Writes tables into the guides."""
    for guide in sorted(GUIDES.glob("*.md")):
        text = guide.read_text(encoding="utf-8")
        new = with_tables(text, tables)
        if new != text:
            guide.write_text(new, encoding="utf-8")
