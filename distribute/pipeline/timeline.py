"""The diagram of a pipeline's step: one line for each stage, one box for each job, as SVG text."""

import os
import xml.etree.ElementTree as ElementTree

from ..storage import local_path
from .schedule import Simulation

_COLOURS = {"forward": "#4c8bf5", "backward": "#f2a33c"}
_LEFT, _TOP, _ROW, _WIDTH = 78, 34, 30, 900


class Timeline:
    """A simulated step that can be displayed and saved.

    A notebook displays the diagram; elsewhere `save(path)` writes an SVG file that any browser opens.

    Args:
        simulation: the step.
        title: text above the diagram.
        unit: of the simulation's times, for the axis; "" writes none.
    """

    def __init__(self, simulation: Simulation, title: str = "", unit: str = "") -> None:
        self.simulation, self.title, self.unit = simulation, title, unit

    def svg(self) -> str:
        """Return the diagram as one SVG document."""
        simulation = self.simulation
        below = _TOP + _ROW * simulation.stages
        scale = _WIDTH / simulation.duration if simulation.duration else 1.0
        root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg")
        right, bottom = _LEFT + _WIDTH + 12, below + 44
        root.attrib.update(width=str(right), height=str(bottom), viewBox=f"0 0 {right} {bottom}")
        root.attrib.update({"font-family": "sans-serif", "font-size": "11"})

        def box(x: float, y: float, width: float, height: float, fill: str) -> ElementTree.Element:
            sizes = {"x": f"{x:.2f}", "y": f"{y}", "width": f"{width:.2f}", "height": f"{height}"}
            return ElementTree.SubElement(root, "rect", sizes, fill=fill)

        def text(x: float, y: float, words: str, anchor: str = "middle", fill: str = "black") -> None:
            place = {"x": f"{x:.2f}", "y": f"{y}", "text-anchor": anchor, "fill": fill}
            ElementTree.SubElement(root, "text", place).text = words

        box(0, 0, right, bottom, "white")
        text(_LEFT, 18, self.title or str(self), "start")
        for stage in range(simulation.stages):
            text(8, _TOP + _ROW * stage + 19, f"stage {stage}", "start")
            box(_LEFT, _TOP + _ROW * stage + 2, _WIDTH, _ROW - 4, "#eeeeee")
        for job in simulation.spans:
            x, y, width = _LEFT + job.start * scale, _TOP + _ROW * job.stage, (job.stop - job.start) * scale
            drawn = box(x, y + 2, width, _ROW - 4, _COLOURS[job.kind])
            drawn.attrib.update({"stroke": "white", "stroke-width": "0.5"})
            title = f"{job.kind} {job.micro_batch} on stage {job.stage}: {job.start:.6g} to {job.stop:.6g} {self.unit}"
            ElementTree.SubElement(drawn, "title").text = title
            if width >= 14:
                text(x + width / 2, y + 19, str(job.micro_batch), fill="white")
        for i in range(5):
            unit, anchor = (f" {self.unit}", "end") if i == 4 else ("", "middle")
            text(_LEFT + _WIDTH * i / 4, below + 16, f"{simulation.duration * i / 4:.4g}{unit}", anchor)
        for i, (kind, colour) in enumerate(_COLOURS.items()):
            box(_LEFT + 110 * i, below + 24, 12, 12, colour)
            text(_LEFT + 110 * i + 17, below + 34, kind, "start")
        return ElementTree.tostring(root, encoding="unicode") + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the diagram to `path` (an .svg file), replacing an existing file."""
        local_path("path", path).write_text(self.svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        simulation = self.simulation
        return (
            f"{simulation.stages} stages, {simulation.micro_batches} micro-batches: "
            f"bubble {simulation.bubble:.1%}, {simulation.speedup:.2f} times one device"
        )
