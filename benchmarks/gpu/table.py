"""The table of `benchmarks.gpu`."""

from __future__ import annotations

from typing import Any

from .task import MODELS, PRECISIONS, TRAINERS

_LABELS = {
    "ours": "unisono fit",
    "loop": "TensorFlow loop",
    "keras": "Keras fit",
    "torch": "PyTorch loop",
    "jax": "JAX loop",
}


def page(results: list[dict[str, Any]], device: str, tiny: bool) -> str:
    """Formats step times, their ratio to the hand-written TensorFlow loop, GPU utilization, and peak memory."""
    cells = {(r["model"], r["precision"], r["trainer"]): r for r in results}
    trainers = [trainer for trainer in TRAINERS if any(r["trainer"] == trainer for r in results)]
    lines = [
        f"# Step times on {device}",
        "",
        "Milliseconds a step (times the TensorFlow loop; GPU busy; peak memory). Small models, to try it out."
        if tiny
        else "Milliseconds a step (times the TensorFlow loop; GPU busy; peak memory).",
        "",
        f"| model | precision | {' | '.join(_LABELS[trainer] for trainer in trainers)} |",
        f"|---|---|{'---|' * len(trainers)}",
    ]
    for model in MODELS:
        for precision in PRECISIONS:
            row = [cells.get((model, precision, trainer)) for trainer in trainers]
            if any(row):
                base = (cells.get((model, precision, "loop")) or {}).get("ms")
                words = " | ".join(_cell(cell, base) for cell in row)
                lines.append(f"| {model} | {precision} | {words} |")
    failures = sorted(
        {
            f"{r['model']}, {r['precision']}, {_LABELS[r['trainer']]}: {r['failed']}"
            for r in results
            if "failed" in r
        }
    )
    if failures:
        lines += ["", "Not measured:", "", *(f"- {failure}" for failure in failures)]
    return "\n".join([*lines, ""])


def _cell(cell: dict[str, Any] | None, base: float | None) -> str:
    if cell is None:
        return ""
    if "failed" in cell:
        return "not measured"
    extra = [f"x{cell['ms'] / base:.2f}"] if base else []
    if cell.get("busy") is not None:
        extra.append(f"{cell['busy']:.0f} %")
    if cell.get("peak"):
        extra.append(f"{cell['peak'] / 2**30:.1f} GiB")
    return f"{cell['ms']:.2f}" + (f" ({'; '.join(extra)})" if extra else "")
