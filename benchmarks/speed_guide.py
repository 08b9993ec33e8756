"""Makes the tables of the speed comparison for `docs/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Iterable

from .contestants import ALL, Contestant
from .contestants.task import MODELS, Task
from .speed_tables import Settings, aims_of, find
from .tables import publish, spread

_REPLACED = {
    "unisono fit": "`unisono` fit",
    "Lightning, fit": "Lightning fit",
    ", fit": "",
    ", data on the device": "",
    "jit_compile=False": "`jit_compile=False`",
    "jit_compile=True": "`jit_compile=True`",
}
GROWTH = ("ours", "keras")  # trainers of the table of growing step times
_SEVERAL = ("ours", "tf_graph", "keras", "tf_keras")
_PIPELINES = ("ours", "tf_graph", "keras", "keras_100", "keras_jax_100")
_HEADS = {"mlp": "MLP", "cnn": "CNN", "transformer": "transformer"}


def is_shown(contestant: Contestant, task: Task) -> bool:
    """Whether the guide's table of this setting includes the trainer."""
    if task.replicas > 1:
        return task.input == "arrays" and contestant.name in _SEVERAL
    return task.input == "arrays" or contestant.name in _PIPELINES


def guide_name(label: str) -> str:
    """The name of a trainer in the guide.

    >>> guide_name("Keras 3 on TensorFlow, fit, jit_compile=True")
    'Keras 3 on TensorFlow, `jit_compile=True`'
    """
    for old, new in _REPLACED.items():
        label = label.replace(old, new)
    return label


def publish_all(settings: Settings, growth: Settings) -> None:
    """Prints the tables whose settings were measured.

    Args:
        settings: the tasks, and what was measured on each.
        growth: the same for the tasks that show how step times grow.
    """
    by_input = [(task.input, task.replicas) for task, _ in settings]
    for kind, replicas in dict.fromkeys(by_input):
        found = {
            task.model: (task, results)
            for task, results in settings
            if (task.input, task.replicas) == (kind, replicas)
        }
        models = [model for model in MODELS if model in found]
        rows = []
        for contestant in ALL:
            each = [find(found[model][1], contestant.name) for model in models]
            if any(each):
                cells = [spread(r.values["step"], 1e6, "{:,.0f}") if r else "" for r in each]
                rows.append([guide_name(contestant.label), *cells])
        publish(f"speed_{kind}_{replicas}", ["", *[_HEADS[model] for model in models]], rows)
    rows = [
        [str(task), against, f"{aim:.2f}", f"{measured:.2f}", "yes" if measured <= aim else "**missed**"]
        for task, results in settings
        for against, aim, measured in aims_of(task, results)
        if measured is not None
    ]
    publish("speed_aims", ["setting", "`fit` against", "aim, at most", "measured", "reached"], rows)
    rows = [[_label(task), *_times(results, GROWTH)] for task, results in growth]
    publish("speed_growth", ["MLP from arrays", "`unisono` fit", "Keras 3 on TensorFlow"], rows)


def _times(results: Iterable, names: Iterable[str]) -> list[str]:
    found = [find(results, name) for name in names]
    return [spread(r.values["step"], 1e6, "{:,.0f}") if r else "" for r in found]


def _label(task: Task) -> str:
    if task.callbacks:
        return f"{task.callbacks} callback{'s' * (task.callbacks > 1)} called on every batch"
    return f"{task.replicas} replicas" if task.replicas > 1 else f"{task.layers} hidden layers"
