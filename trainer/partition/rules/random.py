"""Random draws: different on each replica where they have samples, the same everywhere where they have none."""

import tensorflow as tf

from ..labels import OWN, REPLICATED, label_sharded, sizes
from .view import Gather, Ruling, View, Wants, rule

_WITH_SEED = """
RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal RandomGamma RandomPoissonV2 Multinomial
"""
_WITH_KEY = """
StatelessRandomNormalV2 StatelessRandomUniformV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2
StatelessRandomUniformFullIntV2
"""
_OF_ALL = ("RandomGamma", "RandomPoissonV2", "Multinomial", "RandomShuffle")
STATEFUL, STATELESS = _WITH_SEED.split(), _WITH_KEY.split()


@rule(*STATELESS)
def _draw_with_key(view: View) -> Ruling:
    if _comes_from_constants(view.op.inputs[1]):  # one device draws the same numbers in every step
        raise Gather
    label = view.labels[0]
    wants: Wants = [REPLICATED] * len(view.labels)
    if label.kind == "sizes" and label.chosen:
        return [None, OWN, *wants[2:]], [label_sharded(label.axis, chosen=label.chosen)]
    axis = view.samples_axis()
    if axis is None:
        return wants, [REPLICATED]
    return [sizes(axis), OWN, *wants[2:]], [label_sharded(axis)]


def _comes_from_constants(tensor: tf.Tensor) -> bool:
    """Return whether a tensor is the same in every step, because operations without state compute it from constants."""
    seen, left = set(), [tensor.op]
    while left:
        op = left.pop()
        if op.op_def.is_stateful or not (op.inputs or op.type == "Const"):
            return False
        seen.add(op)
        left += [each.op for each in op.inputs if each.op not in seen]
    return True


@rule(*STATEFUL, "RandomShuffle")
def _draw(view: View) -> Ruling:
    wants: Wants = [REPLICATED] * len(view.labels)
    axis = None if view.type in _OF_ALL else view.samples_axis()
    if axis is None:
        return wants, [OWN]  # the first replica's key, shared by all
    wants[0] = sizes(axis)
    return wants, [label_sharded(axis)]
