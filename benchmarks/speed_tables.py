"""Turns the measurements into Markdown tables of ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from .contestants import BY_NAME
from .contestants.task import Task
from .speed import Result
from .tables import markdown

Settings = list[tuple[Task, list[Result]]]

NOTES = """\
Medians over the rounds, with the quartiles in brackets. In every round the trainers take turns while the others are idle.

- **step**: steady state. The time of an epoch divided by its steps, without the first epoch of a call.
- **with the first epoch**: the time of the whole call of `fit` divided by its steps.
- **epoch**: the number of steps is in the list above. If an epoch lasts more than two seconds, a shorter one is measured
  and its time is scaled.
- **first step**: from the start of Python to the end of the first step: import, building, compiling.
- **short fit**: a new model, built, compiled and trained for 2 epochs of 60 steps, in a process that has trained before.
- **memory**: the peak of the process, data included.
- All train with Adam on batches of 32 samples, shuffled in every epoch. `fit` also computes accuracy; hand-written loops
  compute only the loss.
- The loops in TensorFlow and JAX use Keras' layers and Keras' Adam. Those in PyTorch use PyTorch's
  layers, Adam and transformer encoder, with the same sizes.
- *unisono fit* measures graph and XLA at the beginning of a long run and chooses; a short fit runs in the plain graph.
"""


def best_hand_written(results: Iterable[Result]) -> Result | None:
    """The fastest hand-written loop."""
    found = [r for r in results if r.skipped is None and BY_NAME[r.name].hand_written]
    return min(found, key=lambda r: statistics.median(r.values["step"]), default=None)


def find(results: Iterable[Result], name: str) -> Result | None:
    """The result of a trainer that was measured."""
    return next((r for r in results if r.name == name and r.skipped is None), None)


def median(result: Result | None, what: str) -> float | None:
    """The median of one measurement, or None."""
    if result is None or not result.values.get(what):
        return None
    return statistics.median(result.values[what])


def page(settings: Settings, growth: Settings, facts: dict[str, Any]) -> str:
    """The whole page.

    Args:
        settings: the tasks, and what was measured on each.
        growth: the same for the tasks that show how step times grow.
        facts: facts about the machine and the run.
    """
    parts = ["# Speed of training", _list(facts), NOTES, "## Aims", aims(settings)]
    for task, results in settings:
        parts += [f"## {task}", table(results), _skipped(results)]
    if growth:
        parts += ["## Growth", growth_table(growth)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def table(results: list[Result]) -> str:
    """The table of one setting: a line for each trainer, fastest first."""
    ran = sorted((r for r in results if r.skipped is None), key=lambda r: statistics.median(r.values["step"]))
    best, keras = median(best_hand_written(results), "step"), median(find(results, "keras"), "step")
    head = [
        "trainer",
        "step, us",
        "/ best hand-written loop",
        "/ Keras 3 fit",
        "with the first epoch, us",
        "epoch, s",
        "first step, s",
        "short fit, s",
        "memory, MiB",
        "import, s",
    ]
    rows = [
        [
            BY_NAME[r.name].label,
            spread(r, "step", 1e6, "{:.0f}"),
            ratio(median(r, "step"), best),
            ratio(median(r, "step"), keras),
            spread(r, "step_of_all", 1e6, "{:.0f}"),
            spread(r, "epoch", 1, "{:.3f}"),
            spread(r, "first_step", 1, "{:.1f}"),
            spread(r, "short_fit", 1, "{:.2f}"),
            spread(r, "memory", 2**-20, "{:.0f}"),
            spread(r, "import", 1, "{:.1f}"),
        ]
        for r in ran
    ]
    return markdown(head, rows)


def growth_table(settings: Settings) -> str:
    """Step times of the `fit`s as layers and callbacks grow."""
    names = [r.name for r in settings[0][1] if any(find(results, r.name) for _, results in settings)]
    head = ["setting", *[f"{BY_NAME[name].label}, us" for name in names]]
    rows = [
        [str(task), *[spread(find(results, name), "step", 1e6, "{:.0f}") for name in names]]
        for task, results in settings
    ]
    return markdown(head, rows)


def aims(settings: Settings) -> str:
    """The table of target ratios and measured ratios."""
    rows = []
    for task, results in settings:
        for peer, aim, measured in aims_of(task, results):
            if measured is not None:
                rows.append(
                    [str(task), peer, f"{aim:.2f}", f"{measured:.2f}", "yes" if measured <= aim else "no"]
                )
    return markdown(["setting", "unisono fit against", "aim, at most", "measured", "reached"], rows)


def aims_of(task: Task, results: list[Result]) -> list[tuple[str, float, float | None]]:
    """(peer, target, measured ratio or None) for each target of a setting."""

    def against(others: Iterable[str], what: str = "step") -> float | None:
        values = [v for v in (median(find(results, name), what) for name in others) if v is not None]
        own = median(find(results, "ours"), what)
        return own / min(values) if values and own is not None else None

    hand_written = best_hand_written(results)
    found: list[tuple[str, float, float | None]] = [
        ("the best hand-written loop", 1.10, against([hand_written.name]) if hand_written else None),
        ("Keras 3 fit, a short fit", 1.0, against(["keras"], "short_fit")),
    ]
    keras, jax = ("keras", "keras_100", "keras_xla"), ("keras_jax", "keras_jax_100")
    if task.replicas == 1 and task.input == "arrays":
        if task.model == "mlp":
            found += [
                ("Keras 3 fit as it comes", 0.05, against(["keras"])),
                ("Keras on JAX", 0.5, against(jax)),
            ]
        else:
            aim = {"cnn": 0.7, "transformer": 0.85}[task.model]
            found.append(("the best Keras", aim, against([*keras, *jax])))
    return found


def spread(result: Result | None, what: str, unit: float, form: str) -> str:
    """Median and quartiles as text."""
    values = [] if result is None else [unit * v for v in result.values.get(what, [])]
    if not values:
        return ""
    middle = form.format(statistics.median(values))
    if len(values) < 2:
        return middle
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle} [{form.format(low)}, {form.format(high)}]"


def ratio(value: float | None, base: float | None) -> str:
    """A quotient as text."""
    return "" if value is None or base is None else f"{value / base:.2f}"


def _skipped(results: list[Result]) -> str:
    out = [f"- {BY_NAME[r.name].label}: {r.skipped}" for r in results if r.skipped is not None]
    return "Not measured:\n\n" + "\n".join(out) if out else ""


def _list(facts: dict[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())
