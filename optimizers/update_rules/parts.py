"""How the stages divide gradients, weights and optimizer state over replicas."""

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.optimizers import overwritten_by_gradient, state_of, trained_variables
from ...compat.keras_private.variables import raw_value
from ...distribute.mesh import FLAT, Layout, mesh_of
from ...distribute.replicas import local_copy, num_replicas
from ...distribute.sharding.collectives import gather_shards, own_shard
from ...distribute.sharding.sharded import level_of
from ...distribute.sharding.sharded_value import (
    ShardedValue,
    create_in_shards,
    is_sharded,
    layout_of,
    own_copy,
    shard_variable,
)
from ..building import inner_optimizers, run_in_thread
from ..stages.sparse_gradients import Pairs, is_sparse
from ..stages.user_code import has_user_code


def layout_in_stages(variable: Any) -> Layout | None:
    """Return how the stages divide a variable; None: they do not."""
    if level_of() is None:
        return layout_of(variable)
    return None if overwritten_by_gradient(variable) else Layout(mesh_of(), (FLAT,))


def own_part(value: Any, layout: Layout | None, shape: Sequence[int]) -> Any:
    """This replica's part of a whole tensor or gradient of a shape."""
    if layout is None or layout.axes[0] == FLAT:
        return value if layout is None else own_shard(value, list(shape))
    return layout.own_part(tf.convert_to_tensor(value))


def gather_parts(
    parts: Sequence[tf.Tensor], layouts: Sequence[Layout | None], shapes: Sequence[Any]
) -> list[tf.Tensor]:
    """Return the whole tensors, from the parts of all replicas."""
    flat = [layout is not None and layout.axes[0] == FLAT for layout in layouts]
    shards = [(part, list(shape)) for part, shape, is_flat in zip(parts, shapes, flat) if is_flat]
    rest = iter(gather_shards([part for part, _ in shards], [shape for _, shape in shards]))
    return [
        next(rest) if is_flat else part if layout is None else layout.gather(part)
        for part, layout, is_flat in zip(parts, layouts, flat)
    ]


def whole_value(value: Any) -> tf.Tensor:
    """Return the whole value of a variable."""
    if not isinstance(value, ShardedValue):
        return tf.convert_to_tensor(local_copy(value))
    return gather_parts([value.own().read_value()], [value.layout], [value.shape])[0]


def own_weight(variable: Any) -> tf.Tensor:
    """This replica's part of a trained weight, whether it is stored divided or whole."""
    copy = tf.convert_to_tensor(own_copy(variable))
    return copy if is_sharded(variable) else own_part(copy, layout_in_stages(variable), variable.shape)


def copies_of_parts(pairs: Pairs) -> Any:
    """Return how many replicas have the same part of each gradient."""
    if level_of() is not None:
        return 1
    layouts = [layout_of(v) for _, v in pairs]
    return [num_replicas() if layout is None else layout.copies for layout in layouts]


def stays_whole(gradient: Any, variable: Any) -> bool:
    """Return whether replicas sum the gradient as a whole."""
    return is_sparse(gradient) or overwritten_by_gradient(variable)


def gradient_layouts(flat: Layout | None, optimizer: Any, pairs: Pairs) -> list[Layout | None]:
    """For each pair how a partitioned step gives the sum of the gradient to an optimizer; None: this sums it itself.

    `flat` is the layout of optimizer state that is sharded.
    """
    if flat is None or optimizer.gradient_aggregator is not None:
        return [layout_of(v) if g is not None else None for g, v in pairs]
    return [None if g is None or stays_whole(g, v) else flat for g, v in pairs]


def divide_state(optimizer: Any) -> None:
    """Divide state that was made before its weights were divided, as of a model that has moved to a mesh."""
    late: list[tuple[Any, Layout]] = []
    for each in inner_optimizers(optimizer) or [optimizer]:
        state = state_of(each)
        for variable in trained_variables(each):
            if (layout := layout_of(variable)) is not None:
                alike = [held for held in state(variable) if held.shape == variable.shape]
                late += [(held, layout) for held in alike if layout_of(held) is None]
    if late:
        strategy = tf.distribute.get_strategy()
        run_in_thread(lambda: [shard_variable(held, strategy, layout) for held, layout in late])


def check_parts(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raise a ValueError for what is not supported where weights are divided over a mesh."""
    found = (
        ["code of yours in the update, which may round differently on each replica"]
        if has_user_code(optimizer, variables)
        else []
    )
    if any(each.gradient_aggregator is not None for each in inner_optimizers(optimizer) or [optimizer]):
        found.append("`gradient_aggregator`")
    if found:
        divided = next(v for v in variables if layout_of(v) is not None)
        raise ValueError(
            f"The layout map divides weights ({divided.path!r} of shape {tuple(divided.shape)}), with which this is not "
            f"supported: {', '.join(found)}. Leave it out, or use a mesh that divides the batch alone."
        )


def create_as_shards(reference: Any, initializer: Any) -> contextlib.AbstractContextManager[Any]:
    """Around the creation of an optimizer's state for the trained variable `reference`: divided like it, or sharded.

    Context: eager, in the scope of the strategy.
    """
    strategy, layout = getattr(raw_value(reference), "distribute_strategy", None), layout_of(reference)
    if layout is not None:
        return create_in_shards(strategy, list(reference.shape), initializer, layout)
    if strategy is None or level_of(strategy) is None or overwritten_by_gradient(reference):
        return contextlib.nullcontext()
    return create_in_shards(strategy, list(reference.shape), initializer)
