"""Draw how a batch and a layer are divided, and the logo: `make drawings` writes batch.svg, tensor.svg and logo.svg."""

from __future__ import annotations

import html
import pathlib

ASSETS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "assets"
_FILLS = {"data": ("#1f77b4", "#dceaf5"), "sum": ("#d97706", "#fdebd0"), "state": ("#2e7d32", "#dff0e0")}


class Drawing:
    """Boxes with lines of text, arrows between them, and notes, on white. Positions are pixels."""

    def __init__(self, width: int, height: int, label: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="14" role="img" aria-label="{html.escape(label)}">',
            '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>',
        ]

    def box(self, kind: str, x: int, y: int, width: int, *lines: str) -> tuple[int, int, int]:
        """Add a box as high as its lines; return the middle of its top, and its bottom."""
        height, (edge, fill) = 14 + 19 * len(lines), _FILLS[kind]
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" '
            f'fill="{fill}" stroke="{edge}" stroke-width="1.5"/>'
        )
        for number, line in enumerate(lines):
            self.text(x + width // 2, y + 22 + 19 * number, line)
        return x + width // 2, y, y + height

    def frame(self, x: int, y: int, width: int, height: int) -> None:
        """Add a dashed frame around boxes."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="none" stroke="#999" '
            f'stroke-dasharray="5 4"/>'
        )

    def arrow(self, above: tuple[int, int, int], below: tuple[int, int, int]) -> None:
        """Add an arrow from the bottom of a box to the top of another."""
        near = (above[0] * 3 + below[0]) // 4, (below[0] * 3 + above[0]) // 4
        path = f"M{near[0]} {above[2] + 3}L{near[1]} {below[1] - 3}"
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="#555" stroke-width="1.5" marker-end="url(#a)"/>'
        )

    def text(self, x: int, y: int, line: str, dim: bool = False) -> None:
        """Add a line of text around its middle."""
        look = 'fill="#555" font-size="12.5"' if dim else 'fill="#111"'
        self._parts.append(f'<text x="{x}" y="{y}" text-anchor="middle" {look}>{html.escape(line)}</text>')

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])


def draw_batch(samples: int = 10, replicas: int = 3) -> Drawing:
    """Draw the way of a batch of `samples` through a step, from the input to the logs."""
    label = f"A batch of {samples} samples is cut for {replicas} replicas, sums and counts come back, and are divided once"
    drawing = Drawing(560, 470, label)
    source = drawing.box(
        "data", 130, 12, 300, "input: arrays, files, tf.data, ...", "read a few batches ahead"
    )
    batch = drawing.box("data", 130, 88, 300, f"global batch: samples 0 to {samples - 1}")
    drawing.arrow(source, batch)
    total = drawing.box(
        "sum", 100, 290, 360, "all-reduce over replicas", "gradients; sums and counts of loss and metrics"
    )
    for replica in range(replicas):
        first, end = (number * samples // replicas for number in (replica, replica + 1))
        lines = (
            f"replica {replica}",
            f"samples {first} to {end - 1}",
            "forward, backward",
            f"loss sum / {samples}",
        )
        each = drawing.box("data", 14 + 180 * replica, 160, 170, *lines)
        drawing.arrow(batch, each)
        drawing.arrow(each, total)
    update = drawing.box("state", 30, 380, 240, "clip, update", "the same on each replica")
    logs = drawing.box("state", 290, 380, 240, "logs = sums / counts", "bar, callbacks, History")
    drawing.arrow(total, update)
    drawing.arrow(total, logs)
    drawing.text(280, 456, "Each sample counts once, however uneven the parts are.", dim=True)
    return drawing


def draw_tensor() -> Drawing:
    """Draw a mesh of two replicas times two parts of the model, and a pair of dense layers in one replica."""
    label = "A mesh of 2 x 2 devices: the axis batch divides the samples, the axis model divides the units of a layer"
    drawing = Drawing(640, 560, label)
    drawing.text(345, 24, "axis 'model': which units")
    drawing.text(70, 96, "axis 'batch':")
    drawing.text(70, 115, "which samples")
    for device in range(4):
        batch, model = divmod(device, 2)
        lines = (
            f"device {device}",
            f"samples {8 * batch} to {8 * batch + 7}",
            f"units {128 * model} to {128 * model + 127}",
        )
        drawing.box("data", 150 + 240 * model, 38 + 82 * batch, 210, *lines)
    drawing.frame(140, 32, 470, 84)
    whole = drawing.box("data", 220, 222, 250, "input: 8 x 64, whole on both")
    total = drawing.box("sum", 200, 424, 290, "all-reduce over 'model': sum")
    for part in range(2):
        units = f"{128 * part} to {128 * part + 127}"
        up = drawing.box(
            "state", 40 + 320 * part, 288, 240, f"up, columns {units}", "bias, activation: 8 x 128"
        )
        down = drawing.box("state", 40 + 320 * part, 362, 240, f"down, rows {units}: 8 x 64")
        drawing.arrow(whole, up)
        drawing.arrow(up, down)
        drawing.arrow(down, total)
    output = drawing.box("data", 220, 488, 250, "output: 8 x 64, whole on both")
    drawing.arrow(total, output)
    drawing.text(
        320,
        548,
        "Inside the dashed frame: one replica. It exchanges one sum for each pair of layers.",
        dim=True,
    )
    return drawing


def draw_logo() -> str:
    """Draw three waves that become one note, in white on the colour of the site's header."""
    waves = "".join(f'<path d="M7 {y}c3 6 8 6 11 0s8 -6 11 0S36 47 44 47"/>' for y in (19, 31, 43))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="96" height="96" role="img" '
        'aria-label="Unisono">\n<rect width="64" height="64" rx="12" fill="#4051b5"/>\n'
        f'<g fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round">{waves}<path d="M53 45V12"/></g>\n'
        '<ellipse cx="46" cy="47" rx="8.5" ry="6.5" fill="#fff" transform="rotate(-20 46 47)"/>\n</svg>\n'
    )


PICTURES = {"batch.svg": draw_batch, "logo.svg": draw_logo, "tensor.svg": draw_tensor}


def main() -> None:
    """Write the pictures."""
    for name, draw in PICTURES.items():
        (ASSETS / name).write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
