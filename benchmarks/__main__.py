"""Compares training speed with other frameworks and with hand-written loops: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import time
from typing import Any

from .contestants import ALL, BY_NAME
from .contestants.task import MODELS, Task
from .guide_tables import write
from .speed import Plan, measure
from .speed_chart import draw
from .speed_guide import GROWTH, is_shown, publish_all
from .speed_tables import Settings, page

_PACKAGES = ("tensorflow", "keras", "jax", "tf_keras", "torch", "lightning", "numpy")
_STEPS = {"mlp": 2000, "cnn": 200, "transformer": 60}
_GROWTH = [
    *[Task(layers=layers) for layers in (8, 32)],
    *[Task(callbacks=callbacks) for callbacks in (1, 10)],
    *[Task(replicas=replicas) for replicas in (1, 2, 4)],
]


def main() -> None:
    """Reads the arguments, measures, and writes the results.

        python -m benchmarks [--quick | --guide] [--models mlp,cnn] [--replicas 1,2] [--inputs arrays,dataset] [--out bench]
        python -m benchmarks --write [TABLE ...]      # runs all benchmarks and writes the tables of the guides
        python -m benchmarks --write --try            # the same with small settings, to check that each makes its tables

    The output folder gets `speed.md` (ratios), `speed.png` (a chart) and `speed.json` (all numbers). Frameworks that
    are not installed are left out, and the tables say so. Run it on a machine that does nothing else.
    """
    o = _arguments()
    if o.write is not None:
        raise SystemExit(write(o.write, o.only_try))
    longest, short_fits = (0.5, None) if o.quick else (0.5, 1) if o.guide else (2.0, None)
    plan = Plan(o.rounds, o.starts, o.steps, longest, short_fits=short_fits)
    out = pathlib.Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()

    def say(message: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {message}", flush=True)

    settings: Settings = []
    growth: Settings = []
    tasks = [Task(m, r, i) for m in o.models for r in o.replicas for i in o.inputs]
    for task in tasks:
        contestants = [c for c in o.contestants if not o.guide or is_shown(c, task)]
        if contestants:
            say(str(task))
            settings.append((task, measure(task, contestants, plan, say)))
            _write(out, settings, growth, o)
    shown = GROWTH if o.guide else (*GROWTH, "ours_graph", "keras_jax")
    fits = [c for c in o.contestants if c.name in shown]
    for task in _GROWTH if o.growth and fits else []:
        say(f"growth: {task}")
        smaller = dataclasses.replace(
            plan, starts=1, short_fits=0, steps={"mlp": plan.steps["mlp"] // 4 or 1}
        )
        growth.append((task, measure(task, fits, smaller, say)))
        _write(out, settings, growth, o)
    publish_all(settings, growth)
    say(f"written: {out / 'speed.md'}, {out / 'speed.png'}, {out / 'speed.json'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="ten minutes: two models, one replica, arrays, 3 rounds"
    )
    parser.add_argument(
        "--guide",
        action="store_true",
        help="only what the tables of the guide need: 40 minutes on two cores, 3 rounds",
    )
    parser.add_argument(
        "--write",
        nargs="*",
        metavar="TABLE",
        help="run the benchmarks of these tables (default: all) and write the tables into the guides",
    )
    parser.add_argument(
        "--try",
        dest="only_try",
        action="store_true",
        help="with --write: use small settings and write nothing",
    )
    parser.add_argument("--models", type=_names(MODELS), help=f"some of {','.join(MODELS)}")
    parser.add_argument("--replicas", type=_numbers, help="numbers of logical replicas, such as 1,2,4")
    parser.add_argument("--inputs", type=_names(("arrays", "dataset")), help="arrays, dataset, or both")
    parser.add_argument("--contestants", type=_names(tuple(BY_NAME)), help=f"some of {','.join(BY_NAME)}")
    parser.add_argument("--rounds", type=int, help="rounds; every trainer runs once in each")
    parser.add_argument("--starts", type=int, help="number of processes in which the first step is timed")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of steps in an epoch")
    parser.add_argument(
        "--growth",
        action=argparse.BooleanOptionalAction,
        help="also measure how step times grow with layers, callbacks and replicas",
    )
    parser.add_argument("--out", default="bench", help="folder for the tables and the chart")
    o = parser.parse_args()
    o.models = o.models or (["mlp", "cnn"] if o.quick else list(MODELS))
    o.replicas = o.replicas or ([1] if o.quick else [1, 2, 4] if o.guide else [1, 2])
    o.inputs = o.inputs or (["arrays"] if o.quick else ["arrays", "dataset"])
    o.contestants = [c for c in ALL if o.contestants is None or c.name in o.contestants]
    o.rounds = o.rounds or (3 if o.quick or o.guide else 7)
    o.starts = o.starts or (1 if o.quick or o.guide else 3)
    o.steps = {model: max(1, round(steps * o.scale)) for model, steps in _STEPS.items()}
    o.growth = not o.quick if o.growth is None else o.growth
    return o


def _names(known: tuple[str, ...]) -> Any:
    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown: choose from {', '.join(known)}")
        return names

    return read


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if any(number < 1 or 32 % number for number in numbers):
        raise argparse.ArgumentTypeError(
            f"{text!r} is invalid: each number must divide 32, the samples of a batch"
        )
    return numbers


def _write(out: pathlib.Path, settings: Settings, growth: Settings, options: argparse.Namespace) -> None:
    """Writes the results so far, so that an interrupted run keeps them."""
    facts = _facts(options)
    (out / "speed.md").write_text(page(settings, growth, facts))
    found = [
        {"task": dataclasses.asdict(task), "results": [dataclasses.asdict(r) for r in results]}
        for task, results in [*settings, *growth]
    ]
    (out / "speed.json").write_text(json.dumps({"facts": facts, "settings": found}, indent=1))
    if importlib.util.find_spec("matplotlib") is not None:
        draw(settings, out / "speed.png")


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    installed = {
        d.metadata["Name"].lower().replace("-", "_"): d.version for d in importlib.metadata.distributions()
    }
    versions = [f"{name} {installed[name]}" for name in _PACKAGES if name in installed]
    return {
        "processors": f"{len(os.sched_getaffinity(0))} ({platform.machine()})",
        "python": platform.python_version(),
        "packages": ", ".join(versions),
        "rounds": options.rounds,
        "steps of an epoch": ", ".join(f"{model} {steps}" for model, steps in options.steps.items()),
        "load average at the end": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


if __name__ == "__main__":
    main()
