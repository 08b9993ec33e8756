"""Draws the chart of the README from a table in `docs/benchmarks.md`: `python -m benchmarks.guide_chart`."""

from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "benchmarks.md"
CHART = ROOT / "docs" / "assets" / "speed.png"
TABLE = "speed_arrays_1"
SHOWN = {
    "`unisono` fit": "unisono fit",
    "TensorFlow loop, all of it under XLA": "TensorFlow loop, all of it under XLA",
    "TensorFlow loop, in the graph, each step under XLA": "TensorFlow loop, each step under XLA",
    "TensorFlow loop, in the graph": "TensorFlow loop in the graph",
    "TensorFlow loop, one step a call": "TensorFlow loop, one step a call",
    "JAX scan": "JAX loop (scan)",
    "PyTorch loop": "PyTorch loop",
    "Lightning fit": "Lightning fit",
    "Keras 3 on JAX": "Keras 3 fit on JAX",
    "Keras 3 on TensorFlow": "Keras 3 fit on TensorFlow",
    "tf_keras": "tf_keras fit",
}
"""Line of the table -> its label in the chart."""
LOOPS = [name for name in SHOWN if "loop" in name or name == "JAX scan"]


def medians_in(text: str) -> tuple[list[str], dict[str, list[float]]]:
    r"""Reads the models and each trainer's medians (microseconds per step) from the guide's text.

    >>> table = "| | MLP |\n|---|---|\n| tf_keras | 1,728 [727-732] |"
    >>> medians_in(f"<!-- begin table: speed_arrays_1 -->\n{table}\n<!-- end table -->")
    (['MLP'], {'tf_keras': [1728.0]})
    """
    table = text.partition(f"<!-- begin table: {TABLE} -->\n")[2].partition("\n<!-- end table -->")[0]
    head, _, *lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    models = [cell for cell in head if cell]
    medians = {
        name: [float(re.sub(r"\s*\[.*", "", cell).replace(",", "")) for cell in cells]
        for name, *cells in lines
    }
    return models, medians


def draw(path: pathlib.Path) -> None:
    """Writes a PNG with one panel per model and one bar per trainer, labelled with its median."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models, medians = medians_in(GUIDE.read_text(encoding="utf-8"))
    figure, panels = pyplot.subplots(1, len(models), figsize=(4.2 * len(models), 3.6), sharey=True)
    names = list(SHOWN)[::-1]
    for index, (panel, model) in enumerate(zip(panels, models)):
        values = [medians[name][index] for name in names]
        grey = dict.fromkeys(LOOPS, "#8d8d8d")
        colors = ["#1f6f5c" if name == "`unisono` fit" else grey.get(name, "#c9a27e") for name in names]
        # XLA's convolutions on a CPU take so long that no other bar could be seen.
        most = 1.2 * max(value for name, value in zip(names, values) if name not in LOOPS)
        panel.barh([SHOWN[name] for name in names], values, color=colors)
        for place, value in enumerate(values):
            beyond = value > most
            label = f"{value:,.0f} → " if beyond else f" {value:,.0f}"
            edge, side = (1.2 * most, "right") if beyond else (value, "left")
            panel.text(edge, place, label, va="center", ha=side, fontsize=8)
        panel.set_xlim(0, 1.2 * most)
        panel.set_title(model, fontsize=10)
        panel.set_xticks([])
        panel.tick_params(axis="y", labelsize=9, length=0)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    figure.suptitle(
        "Microseconds per step of 32 samples (less is better): two CPU cores, from arrays; hand-written loops in grey",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


if __name__ == "__main__":
    draw(CHART)
    print(CHART)
