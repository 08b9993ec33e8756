"""Stages 4 and 5 where weights are divided over a mesh: those of whole weights, on this replica's parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...distribute.replicas import num_replicas
from ...distribute.sharding.sharded_value import layout_of, own_shards
from ..building import inner_optimizers
from ..stages.clipping import norms_over_shards
from ..stages.sparse_gradients import Pairs
from ..stages.step_hooks import step_hooks
from ..stages.transformers import ClipByGlobalNorm, ClipByNorm, ClipByValue
from ..stages.user_code import has_user_code, is_elementwise
from .replica_rule import transform_and_apply

_ON_PARTS = (ClipByGlobalNorm, ClipByNorm, ClipByValue)
"""The ready pieces that need no whole gradient."""


def transform_and_apply_parts(optimizer: Any, pairs: Pairs) -> None:
    """Stages 4 and 5 where weights are divided over a mesh: each replica updates its parts, and its copies of whole weights.

    Context: replica.
    """
    layouts = [layout_of(v) for _, v in pairs]
    copies = [num_replicas() if layout is None else layout.copies for layout in layouts]
    with own_shards(), norms_over_shards(copies):
        transform_and_apply(optimizer, pairs)


def check_parts(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raises a ValueError for what is not supported where weights are divided over a mesh."""
    constrained = [v.path for v in variables if layout_of(v) is not None and v.constraint is not None]
    found = [f"the constraint of {constrained[0]!r}"] if constrained else []
    for each in inner_optimizers(optimizer) or [optimizer]:
        name = type(each).__name__
        if not is_elementwise(each) or has_user_code(each, variables):
            found.append(f"the update rule of {name}, which may need whole weights")
        if each.gradient_aggregator is not None:
            found.append("`gradient_aggregator`")
        if any(type(transformer) not in _ON_PARTS for transformer in each.gradient_transformers):
            found.append("`gradient_transformers` that may need whole gradients")
        if each.use_ema:
            found.append("`use_ema`")
        if step_hooks(each):
            found.append("a callback that watches gradients")
    if found:
        divided = next(v.path for v in variables if layout_of(v) is not None)
        raise ValueError(
            f"The layout map divides weights ({divided!r}), with which this is not supported yet: {', '.join(found)}. Use "
            "one of Keras' elementwise optimizers, such as Adam, without these, or a mesh that divides the batch alone."
        )
