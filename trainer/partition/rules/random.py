"""Random draws: different on each replica where they have samples, the same everywhere where they have none."""

from __future__ import annotations

from ..labels import OWN, REPLICATED, sharded, sizes
from ..program import PROBES
from .view import Ruling, View, Wants, rule

STATEFUL = (
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "Multinomial",
)
STATELESS = (
    "StatelessRandomNormalV2",
    "StatelessRandomUniformV2",
    "StatelessTruncatedNormalV2",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformFullIntV2",
)


def _samples_axis(view: View) -> int | None:
    """The axis of a drawn tensor that has the samples; None where it has none, or it is not known."""
    axes = view.depends_on_batch()
    shapes = view.out_shapes[0]
    if len(axes) != 1 or shapes[0] is None or shapes[1] is None:
        return None
    extents = shapes[0][axes[0]], shapes[1][axes[0]]
    exact = all(extent is not None and extent % batch == 0 for extent, batch in zip(extents, PROBES))
    return axes[0] if exact else None


@rule(*STATELESS)
def _drawn_with_key(view: View) -> Ruling:
    label = view.labels[0]
    wants: Wants = [REPLICATED] * len(view.labels)
    if label.kind == "sizes" and label.chosen:
        return [None, OWN, *wants[2:]], [sharded(label.axis, chosen=label.chosen)]
    axis = _samples_axis(view)
    if axis is None:
        return wants, [REPLICATED]
    return [sizes(axis), OWN, *wants[2:]], [sharded(axis)]


@rule(*STATEFUL)
def _drawn(view: View) -> Ruling:
    wants: Wants = [REPLICATED] * len(view.labels)
    axis = None if view.type in ("RandomGamma", "RandomPoissonV2", "Multinomial") else _samples_axis(view)
    if axis is None:
        return wants, [OWN]  # the first replica's key, shared by all
    wants[0] = sizes(axis)
    return wants, [sharded(axis)]


@rule("RandomShuffle")
def _shuffled(view: View) -> Ruling:
    return [REPLICATED], [OWN]
