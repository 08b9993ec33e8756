"""How the stages divide gradients, weights and optimizer state over replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.optimizers import overwritten_by_gradient
from ...compat.keras_private.variables import raw_value
from ...distribute.mesh import FLAT, Layout, gather_part, mesh_of
from ...distribute.replicas import local_copy, local_replica_index, num_replicas
from ...distribute.sharding.collectives import gather_shards, own_shard
from ...distribute.sharding.sharded import level_of
from ...distribute.sharding.sharded_value import (
    ShardedValue,
    created_in_shards,
    is_sharded,
    layout_of,
    own_copy,
)
from ..stages.sparse_gradients import Pairs, is_sparse


def layout_in_stages(variable: Any) -> Layout | None:
    """How the stages divide a variable; None: they do not."""
    if level_of() is None:
        return layout_of(variable)
    return None if overwritten_by_gradient(variable) else Layout(mesh_of(), (FLAT,))


def own_part(value: Any, layout: Layout | None, shape: Sequence[int]) -> Any:
    """This replica's part of a whole tensor or gradient of a shape."""
    if layout is None or layout.axes[0] == FLAT:
        return value if layout is None else own_shard(value, list(shape))
    return layout.part(tf.convert_to_tensor(value), local_replica_index())


def gather_parts(
    parts: Sequence[tf.Tensor], layouts: Sequence[Layout | None], shapes: Sequence[Any]
) -> list[tf.Tensor]:
    """The whole tensors, from the parts of all replicas."""
    flat = [layout is not None and layout.axes[0] == FLAT for layout in layouts]
    shards = [(part, list(shape)) for part, shape, is_flat in zip(parts, shapes, flat) if is_flat]
    rest = iter(gather_shards([part for part, _ in shards], [shape for _, shape in shards]))
    return [
        next(rest) if is_flat else part if layout is None else gather_part(part, layout)
        for part, layout, is_flat in zip(parts, layouts, flat)
    ]


def whole_value(value: Any) -> tf.Tensor:
    """The whole value of a variable."""
    if not isinstance(value, ShardedValue):
        return tf.convert_to_tensor(local_copy(value))
    return gather_parts([value.own().read_value()], [value.layout], [value.shape])[0]


def own_weight(variable: Any) -> tf.Tensor:
    """This replica's part of a trained weight, whether it is stored divided or whole."""
    copy = tf.convert_to_tensor(own_copy(variable))
    return copy if is_sharded(variable) else own_part(copy, layout_in_stages(variable), variable.shape)


def copies_of_parts(pairs: Pairs) -> Any:
    """How many replicas have the same part of each gradient."""
    if level_of() is not None:
        return 1
    layouts = [layout_of(v) for _, v in pairs]
    return [num_replicas() if layout is None else layout.copies for layout in layouts]


def stays_whole(gradient: Any, variable: Any) -> bool:
    """Whether replicas sum the gradient as a whole."""
    return is_sparse(gradient) or overwritten_by_gradient(variable)


def gradient_layouts(flat: Layout | None, optimizer: Any, pairs: Pairs) -> list[Layout | None]:
    """For each pair how a partitioned step gives the sum of the gradient to an optimizer; None: this sums it itself.

    `flat` is the layout of optimizer state that is sharded.
    """
    if flat is None or optimizer.gradient_aggregator is not None:
        return [layout_of(v) if g is not None else None for g, v in pairs]
    return [None if g is None or stays_whole(g, v) else flat for g, v in pairs]


def created_as_shards(reference: Any, initializer: Any) -> contextlib.AbstractContextManager[Any]:
    """Around the creation of an optimizer's state for the trained variable `reference`: divided like it, or sharded.

    Context: eager, in the scope of the strategy.
    """
    strategy, layout = getattr(raw_value(reference), "distribute_strategy", None), layout_of(reference)
    if layout is not None:
        return created_in_shards(strategy, list(reference.shape), initializer, layout)
    if strategy is None or level_of(strategy) is None or overwritten_by_gradient(reference):
        return contextlib.nullcontext()
    return created_in_shards(strategy, list(reference.shape), initializer)
