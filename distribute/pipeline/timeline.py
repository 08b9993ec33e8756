"""The picture of a pipeline's step: one line for each stage, one box for each job, as SVG text."""

from __future__ import annotations

import html
import os

from ..storage import local_path
from .schedule import Job, Simulation

_COLOURS = {"forward": "#4c8bf5", "backward": "#f2a33c"}
_LEFT, _TOP, _ROW, _WIDTH = 78, 34, 30, 900


class Timeline:
    """A simulated step that can be shown and saved.

    In a notebook the picture shows itself; elsewhere `save(path)` writes an SVG file that any browser opens.

    Args:
        simulation: the step.
        title: written above the picture.
        unit: of the simulation's times, for the axis; "" writes none.
    """

    def __init__(self, simulation: Simulation, title: str = "", unit: str = "") -> None:
        self.simulation, self.title, self.unit = simulation, title, unit

    def svg(self) -> str:
        """The picture as one SVG document."""
        simulation = self.simulation
        height = _TOP + _ROW * simulation.stages + 44
        scale = _WIDTH / simulation.duration if simulation.duration else 1.0
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 12}" height="{height}" '
            'font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{_LEFT}" y="18" font-size="13">{html.escape(self.title or self._caption())}</text>',
        ]
        for stage in range(simulation.stages):
            y = _TOP + _ROW * stage
            parts.append(f'<text x="8" y="{y + 19}">stage {stage}</text>')
            parts.append(
                f'<rect x="{_LEFT}" y="{y + 2}" width="{_WIDTH}" height="{_ROW - 4}" fill="#eeeeee"/>'
            )
        parts += [self._box(span, scale) for span in simulation.spans]
        parts += self._axis(_TOP + _ROW * simulation.stages)
        parts.append("</svg>")
        return "\n".join(parts) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to `path` (an .svg file), replacing what is there."""
        local_path("path", path).write_text(self.svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return self._caption()

    def _caption(self) -> str:
        simulation = self.simulation
        return (
            f"{simulation.stages} stages, {simulation.micro_batches} micro-batches: "
            f"bubble {simulation.bubble:.1%}, {simulation.speedup:.2f} times one device"
        )

    def _box(self, job: Job, scale: float) -> str:
        x, width = _LEFT + job.start * scale, (job.stop - job.start) * scale
        y = _TOP + _ROW * job.stage
        title = f"{job.kind} {job.micro_batch} on stage {job.stage}: {job.start:.6g} to {job.stop:.6g} {self.unit}"
        box = (
            f'<rect x="{x:.2f}" y="{y + 2}" width="{width:.2f}" height="{_ROW - 4}" stroke="white" '
            f'stroke-width="0.5" fill="{_COLOURS[job.kind]}"><title>{html.escape(title)}</title></rect>'
        )
        if width < 14:
            return box
        label = f'<text x="{x + width / 2:.2f}" y="{y + 19}" text-anchor="middle" fill="white">'
        return f"{box}{label}{job.micro_batch}</text>"

    def _axis(self, y: int) -> list[str]:
        duration = self.simulation.duration
        ticks = [
            f'<text x="{_LEFT + _WIDTH * i / 4:.1f}" y="{y + 16}" text-anchor="middle">'
            f"{duration * i / 4:.4g} {html.escape(self.unit if i == 4 else '')}</text>"
            for i in range(5)
        ]
        legend = [
            f'<rect x="{_LEFT + 110 * i}" y="{y + 24}" width="12" height="12" fill="{colour}"/>'
            f'<text x="{_LEFT + 110 * i + 17}" y="{y + 34}">{kind}</text>'
            for i, (kind, colour) in enumerate(_COLOURS.items())
        ]
        return ticks + legend
