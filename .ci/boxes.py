"""A drawing of boxes, arrows and text, as SVG. .ci/drawings.py has the drawings of the documentation."""

from __future__ import annotations

import html

FILLS = {
    "data": ("#1f77b4", "#dceaf5"),
    "sum": ("#d97706", "#fdebd0"),
    "state": ("#2e7d32", "#dff0e0"),
    "end": ("#777", "#eee"),
}
Place = tuple[int, int, int]  # the middle of a box, its top and its bottom


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

    def box(
        self, kind: str, x: int, y: int, width: int, *lines: str, look: str = "", left: bool = False
    ) -> Place:
        """Add a box as high as its lines, of which the first one has the look; return where it is."""
        height, (edge, fill) = 14 + 19 * len(lines), FILLS[kind]
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" '
            f'fill="{fill}" stroke="{edge}" stroke-width="1.5"/>'
        )
        for number, line in enumerate(lines):
            place = x + 12 if left else x + width // 2, y + 22 + 19 * number
            self.text(*place, line, look * (not number), "start" if left else "middle")
        return x + width // 2, y, y + height

    def cell(self, color: str, x: int, y: int, width: int, height: int, text: str = "") -> None:
        """Add a filled rectangle, with white text; without a color only its edge."""
        look = f'fill="{color}"' if color else 'fill="none" stroke="#999" stroke-dasharray="3 3"'
        self._parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {look}/>')
        if text:
            self.text(x + width // 2, y + height // 2 + 4, text, 'fill="#fff" font-size="12"')

    def frame(self, x: int, y: int, width: int, height: int) -> None:
        """Add a dashed frame around boxes."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="none" stroke="#999" '
            f'stroke-dasharray="5 4"/>'
        )

    def arrow(self, above: Place, below: Place) -> None:
        """Add an arrow from the bottom of a box to the top of another."""
        near = (above[0] * 3 + below[0]) // 4, (below[0] * 3 + above[0]) // 4
        self.line(f"M{near[0]} {above[2] + 3}L{near[1]} {below[1] - 3}")

    def line(self, path: str) -> None:
        """Add an arrow along a path."""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="#555" stroke-width="1.5" marker-end="url(#a)"/>'
        )

    def text(self, x: int, y: int, line: str, look: str = "", anchor: str = "middle") -> None:
        """Add a line of text around its middle, or from its start."""
        look = look if "fill" in look else f'{look} fill="#111"'.strip()
        self._parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" {look}>{html.escape(line)}</text>')

    def legend(self, y: int, *entries: tuple[int, str, str]) -> None:
        """Add what colors mean: (x, color, text) of each."""
        for x, color, text in entries:
            self.cell(color, x, y, 13, 13)
            self.text(x + 20, y + 11, text, 'font-size="13"', "start")

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])


DIM, BOLD, MONO = (
    'fill="#555" font-size="12.5"',
    'font-weight="bold"',
    'font-family="monospace" font-size="13"',
)
