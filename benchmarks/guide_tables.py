"""Runs the benchmarks whose figures are in the guides, one after the other, and writes their tables there.

    python -m benchmarks --write [TABLE ...]

Each benchmark is a process of its own. One that fails or takes too long leaves its tables as they are and is named at the
end; the others go on.
"""

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

GUIDES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "guides"
_LIMIT = 6 * 3600  # seconds of one benchmark


class Benchmark(NamedTuple):
    """What makes tables of the guides.

    Attributes:
        module: of `benchmarks`; "" is the comparison of frameworks itself.
        tables: the names of the regions that it writes.
        arguments: of its command line.
    """

    module: str
    tables: tuple[str, ...]
    arguments: tuple[str, ...] = ()


SPEED = (
    "speed_arrays_1",
    "speed_arrays_2",
    "speed_arrays_4",
    "speed_dataset_1",
    "speed_aims",
    "speed_growth",
)
BENCHMARKS = (
    Benchmark("", SPEED, ("--replicas", "1,2,4")),
    Benchmark("step_logs", ("step_logs",)),
    Benchmark("user_code", ("user_code",)),
    Benchmark("evaluate_predict", ("evaluate_predict",)),
    Benchmark("short_fits", ("short_fits",)),
    Benchmark("start", ("start",)),
    Benchmark("many_variables", ("many_variables",)),
    Benchmark("cnn_kernels", ("cnn_kernels",)),
    Benchmark("feeding", ("feeding",)),
    Benchmark("backup_stall", ("backup_stall",)),
    Benchmark("workers_efficiency", ("workers_efficiency",)),
    Benchmark(
        "workers_efficiency",
        ("workers_efficiency_25",),
        ("--mbyte", "25", "--steps", "20", "--only", "ours,tensorflow,torch"),
    ),
    Benchmark("workers_efficiency", ("all_reduce_limit",), ("--what", "limits")),
    Benchmark(
        "workers_efficiency", ("all_reduce_limit_25",), ("--what", "limits", "--mbyte", "25", "--steps", "20")
    ),
    Benchmark("scaling_check", ("scaling_check",)),
    Benchmark("mixed_memory", ("mixed_memory",)),
    Benchmark("counted_memory", ("counted_memory",)),
    Benchmark("sharded_state", ("sharded_state",)),
    Benchmark("parameter_servers", ("parameter_servers", "parameter_servers_slowed")),
    Benchmark("pipeline_memory", ("pipeline_memory",)),
    Benchmark("pipeline_speed", ("pipeline_speed",)),
)


def write(names: Sequence[str]) -> int:
    """Measures the tables of these names, none for all, and writes them into the guides; returns an exit status."""
    chosen = [b for b in BENCHMARKS if not names or set(names) & set(b.tables)]
    unknown = set(names).difference(*(b.tables for b in BENCHMARKS))
    if unknown:
        known = ", ".join(table for b in BENCHMARKS for table in b.tables)
        print(f"no table {', '.join(sorted(unknown))}: give some of {known}", file=sys.stderr)
        return 2
    failed = []
    for benchmark in chosen:
        began = time.perf_counter()
        found = {name: table for name, table in run(benchmark).items() if not names or name in names}
        missing = [name for name in benchmark.tables if name not in found and (not names or name in names)]
        failed += missing
        replace(found)
        words = f"written: {', '.join(found) or 'nothing'}"
        if missing:
            words += f"; not measured: {', '.join(missing)}"
        print(
            f"{time.perf_counter() - began:6.0f} s  {benchmark.module or 'benchmarks'}: {words}", flush=True
        )
    if failed:
        print(f"these tables are as they were: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(benchmark: Benchmark) -> dict[str, str]:
    """The tables that a benchmark prints; fewer where it fails, and the end of its errors is shown."""
    module = f"benchmarks.{benchmark.module}" if benchmark.module else "benchmarks"
    command = [sys.executable, "-m", module, *benchmark.arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, **pipes)
    try:
        out, err = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += f"\n{module} took more than {_LIMIT} s"
    if process.returncode:
        print(f"{module} ended with status {process.returncode}:\n{err[-2000:]}", file=sys.stderr, flush=True)
    return tables_in(out)


def replace(tables: dict[str, str]) -> None:
    """Writes tables into their regions."""
    for guide in sorted(GUIDES.glob("*.md")):
        text = guide.read_text(encoding="utf-8")
        new = with_tables(text, tables)
        if new != text:
            guide.write_text(new, encoding="utf-8")
