"""Random draws: different on each replica where they have samples, the same everywhere where they have none."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..labels import OWN, REPLICATED
from ..program import NeedsWhole
from ..sizes.size_arrays import Unknown
from .call import Call, Ruling, View, keep_shape, shape_in
from .row import ORDERS, add_rows
from .samples import of_each_sample
from .shapes import find_filled
from .terms import label_filled

_FILLED = find_filled(0)
_WITH_KEY = """
StatelessRandomNormalV2 StatelessRandomUniformV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2
StatelessRandomUniformFullIntV2
"""


def _label_draw_with_key(view: View) -> Ruling | None:
    if _comes_from_constants(view.op.inputs[1]):  # one device draws the same numbers in every step
        raise Unknown
    found = label_filled(view, _FILLED(view))
    if found is None or (not found[1][0].chosen and _shares_seed(view)):
        return view.gather()
    found[0][1] = OWN
    return found


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


def _shares_seed(view: View) -> bool:
    """Return whether a draw of another size has the same seed: one device begins both with the same numbers."""
    for other in view.op.graph.get_operations():
        drawn = view.value_of(other.outputs[0]) if other.type == view.type and other is not view.op else None
        if drawn is None or not _is_same(view.op.inputs[1], other.inputs[1]):
            continue  # it comes later, and finds this one
        if not drawn.labels[view.number].is_sharded:
            return True
        if drawn.shape != view.out_shape():
            raise NeedsWhole(other.name, "has the seed of another draw, and another size")
    return False


def _is_same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Return whether equal operations without state compute two tensors of a graph from the same ones."""
    seen, left = set[tuple[str, str]](), [(one, other)]
    while left:
        pair = left.pop()
        names, (first, second) = (pair[0].name, pair[1].name), (each.op for each in pair)
        if names[0] == names[1] or names in seen:
            continue
        seen.add(names)
        repeats = not first.op_def.is_stateful and (first.inputs or first.type == "Const")
        alike = pair[0].value_index == pair[1].value_index and first.type == second.type
        attributes = [dict(op.node_def.attr) for op in (first, second)]
        if not (repeats and alike and attributes[0] == attributes[1]):
            return False
        left += zip(first.inputs, second.inputs, strict=True)
    return True


add_rows(_WITH_KEY, label=_label_draw_with_key, shape=shape_in(0), fills=True)


def _label_shared_draw(view: View) -> Ruling:
    """Label a draw that all replicas share: the first one's numbers."""
    return [REPLICATED] * len(view.labels), [OWN] * view.count


def _shuffle_positions(call: Call) -> Callable[..., list[tf.Tensor]] | None:
    """Return a shuffle as a lookup of shuffled positions, which are small numbers that replicas can share."""

    def shuffle(values: tf.Tensor) -> list[tf.Tensor]:
        seeds = {name: call.attr(name) for name in ("seed", "seed2")}
        return [tf.gather(values, tf.raw_ops.RandomShuffle(value=tf.range(tf.shape(values)[0]), **seeds))]

    return None if call.values[0].dtype.is_integer and call.rank() == 1 else shuffle


_instead = "draw them before it, or with `tf.random.stateless_uniform` and the like"
_effect = ("draws random numbers that all replicas share", _instead)
_DRAW: Any = {"draws": True, "fills": True, "effect": _effect}
_SHARED: Any = {"label": _label_shared_draw, **_DRAW}
_PLAIN = "RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal"
add_rows(
    _PLAIN,
    label=lambda view: label_filled(view, _FILLED(view)) or _label_shared_draw(view),
    shape=shape_in(0),
    **_DRAW,
)
add_rows("RandomGamma RandomPoissonV2", shape=shape_in(0, 1), **_SHARED)
add_rows("Multinomial", terms=of_each_sample(0, infers=True), **_SHARED)
add_rows("RandomShuffle", shape=keep_shape(), rewrite=_shuffle_positions, reason=ORDERS, **_SHARED)
