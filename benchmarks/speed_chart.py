"""Draws the step times: a panel for each setting, a bar for each trainer."""

from __future__ import annotations

import pathlib
import statistics

from .contestants import BY_NAME
from .speed_tables import Settings

_OURS, _HAND_WRITTEN, _OTHERS = "#1f6f5c", "#b8b8b8", "#d9893b"


def draw(settings: Settings, path: pathlib.Path) -> None:
    """Writes a PNG to `path`; bars end at the median, lines span the quartiles, the scale is logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = [(task, results) for task, results in settings if any(r.skipped is None for r in results)]
    columns = min(2, len(settings))
    rows = -(-len(settings) // columns) if columns else 0
    if not rows:
        return
    figure, grid = pyplot.subplots(rows, columns, figsize=(8.5 * columns, 4.2 * rows), squeeze=False)
    for panel in grid.flat[len(settings) :]:
        panel.set_visible(False)
    for panel, (task, results) in zip(grid.flat, settings):
        ran = sorted(
            (r for r in results if r.skipped is None), key=lambda r: -statistics.median(r.values["step"])
        )
        medians = [1e6 * statistics.median(r.values["step"]) for r in ran]
        panel.barh([BY_NAME[r.name].label for r in ran], medians, color=[_colour(r.name) for r in ran])
        for place, (result, middle) in enumerate(zip(ran, medians)):
            values = [1e6 * v for v in result.values["step"]]
            high = middle
            if len(values) > 1:
                low, _, high = statistics.quantiles(values, n=4, method="inclusive")
                panel.plot([low, high], [place, place], color="black", linewidth=1)
            panel.text(high * 1.05, place, f"{middle:.0f}", va="center", fontsize=8)
        panel.set_xscale("log")
        panel.set_xlim(min(medians) / 2, 3 * max(medians))
        panel.set_xlabel("microseconds per step, less is better")
        panel.set_title(str(task), fontsize=10)
        panel.tick_params(axis="y", labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "Training steps: unisono (green), hand-written loops (grey), others (orange)", fontsize=11
    )
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _colour(name: str) -> str:
    if name.startswith("ours"):
        return _OURS
    return _HAND_WRITTEN if BY_NAME[name].hand_written else _OTHERS
