"""How the stages divide gradients, weights and optimizer state over replicas."""

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.optimizers import overwritten_by_gradient, state_of, trained_variables
from ...compat.keras_private.variables import raw_value
from ...compat.wrong_use import WrongUse
from ...distribute.mesh import FLAT, Layout, Mesh, flat_layout, from_rows, mesh_of
from ...distribute.replicas import local_copy, num_replicas
from ...distribute.sharding.collectives import all_gather, own_part_of_slices
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


def layout_in_stages(variable: Any, strategy: Any = None) -> Layout | None:
    """Return how the stages divide a variable under a strategy (None: the current one); None: they do not."""
    return divide_further(variable, None if level_of(strategy) is None else mesh_of(strategy))


def divide_further(variable: Any, mesh: Mesh | None) -> Layout | None:
    """Return the layout of a variable, and with a mesh, over which state is sharded, that of its state."""
    layout = layout_of(variable)
    return layout if mesh is None or overwritten_by_gradient(variable) else flat_layout(mesh, layout)


def own_part(value: Any, layout: Layout | None, shape: Sequence[int]) -> Any:
    """Return this replica's part of a whole tensor or gradient of a shape."""
    if layout is None:
        return value
    if is_sparse(value) and layout == flat_layout(layout.mesh):
        return own_part_of_slices(value, list(shape))
    return layout.own_part(tf.ensure_shape(tf.convert_to_tensor(value), shape))


def join_flat_parts(
    parts: Sequence[tf.Tensor], layouts: Sequence[Layout | None], shapes: Sequence[Any]
) -> list[tf.Tensor]:
    """Return what was divided into flat parts, from those of all replicas; other parts are returned as they are."""
    flat = [(n, layout) for n, layout in enumerate(layouts) if layout is not None and layout.is_flat]
    found = list(parts)
    for (n, layout), rows in zip(flat, all_gather([parts[n] for n, _ in flat])):
        found[n] = from_rows(rows, FLAT, layout.mesh.shape[0], layout.before_flat(shapes[n]))
    return found


def gather_parts(
    parts: Sequence[tf.Tensor], layouts: Sequence[Layout | None], shapes: Sequence[Any]
) -> list[tf.Tensor]:
    """Return the whole tensors, from the parts of all replicas."""
    joined = join_flat_parts(parts, layouts, shapes)
    return [part if layout is None else layout.gather(part) for part, layout in zip(joined, layouts)]


def whole_value(value: Any) -> tf.Tensor:
    """Return the whole value of a variable."""
    if not isinstance(value, ShardedValue):
        return tf.convert_to_tensor(local_copy(value))
    return gather_parts([value.own().read_value()], [value.layout], [value.shape])[0]


def own_weight(variable: Any) -> tf.Tensor:
    """Return this replica's part of a trained weight, whether it is stored divided or whole."""
    copy, layout = tf.convert_to_tensor(own_copy(variable)), layout_in_stages(variable)
    if layout is None or (is_sharded(variable) and raw_value(variable).layout == layout):
        return copy
    return flat_layout(layout.mesh).own_part(copy)  # of a whole weight, or of a part along the model


def copies_of_parts(pairs: Pairs) -> Any:
    """Return how many replicas have the same part of each gradient."""
    layouts = [layout_in_stages(v) for _, v in pairs]
    return [num_replicas() if layout is None else layout.copies for layout in layouts]


def stays_whole(gradient: Any, variable: Any) -> bool:
    """Return whether replicas sum the gradient as a whole."""
    return is_sparse(gradient) or overwritten_by_gradient(variable)


def aggregates_itself(optimizer: Any) -> bool:
    """Return whether an optimizer, behind a loss scale if it has one, has a `gradient_aggregator`."""
    return getattr(optimizer, "inner_optimizer", optimizer).gradient_aggregator is not None


def gradient_layouts(mesh: Mesh | None, optimizer: Any, pairs: Pairs) -> list[Layout | None]:
    """Return, for each pair, the layout in which an optimizer gets the sum of the gradient; None: it sums it itself.

    `mesh` is as for `divide_further`.
    """
    aggregates = aggregates_itself(optimizer)

    def find_layout(gradient: Any, variable: Any) -> Layout | None:
        itself = aggregates or stays_whole(gradient, variable)
        if gradient is None or (itself and layout_of(variable) is None):
            return None
        return divide_further(variable, mesh)

    return [find_layout(*pair) for pair in pairs]


def divide_state(optimizer: Any) -> None:
    """Divide state that was made before its weights were divided, as of a model that has moved to a mesh."""
    late: list[tuple[Any, Layout]] = []
    for each in inner_optimizers(optimizer) or [optimizer]:
        state = state_of(each)
        for variable in trained_variables(each):
            if (layout := layout_in_stages(variable)) is not None:
                others = [held for held in state(variable) if held is not variable]
                alike = [held for held in others if held.shape == variable.shape]
                late += [(held, layout) for held in alike if layout_of(held) != layout]
    if late:
        strategy = tf.distribute.get_strategy()
        run_in_thread(lambda: [shard_variable(held, strategy, layout) for held, layout in late])


def check_parts(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raise a ValueError for what does not work with weights that are divided over a mesh."""
    found = (
        ["your own code in the update, which may round differently on each replica"]
        if has_user_code(optimizer, variables)
        else []
    )
    if any(each.gradient_aggregator is not None for each in inner_optimizers(optimizer) or [optimizer]):
        found.append("`gradient_aggregator`")
    if found:
        divided = [f"{v.path!r} of shape {tuple(v.shape)}" for v in variables if layout_of(v) is not None]
        raise WrongUse(
            f"The mesh {mesh_of()} divides weights{f' ({divided[0]})' if divided else ''}, which does not work with "
            f"{', '.join(found)}. Leave it out, or use a mesh that divides only the batch."
        )


def create_as_shards(reference: Any, initializer: Any) -> contextlib.AbstractContextManager[Any]:
    """Create an optimizer's state, in the block, divided like the trained variable `reference`, or sharded.

    Context: eager, in the scope of the strategy.
    """
    strategy = getattr(raw_value(reference), "distribute_strategy", None)
    layout = None if strategy is None else layout_in_stages(reference, strategy)
    if layout is None:
        return contextlib.nullcontext()
    return create_in_shards(strategy, list(reference.shape), initializer, layout)
