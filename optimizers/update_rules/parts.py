"""Stages 4 and 5 where weights are divided over a mesh: those of whole weights, on this replica's parts.

Code that treats each number by itself, and norms, run on the parts. Other code sees whole values, gathered where it reads
them, and the parts of what it writes are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.optimizers import state_of, trained_variables
from ...compat.keras_private.variables import raw_value
from ...distribute.mesh import Layout
from ...distribute.replicas import num_replicas
from ...distribute.sharding.sharded_value import (
    ShardedValue,
    TensorInPlace,
    layout_of,
    own_shards,
    seen_through,
    shard_variable,
)
from ..building import inner_optimizers, run_in_thread
from ..stages.clipping import norms_over_shards
from ..stages.sparse_gradients import Pairs
from ..stages.step_hooks import StepHook
from ..stages.transformers import AddDecayedWeights, ClipByGlobalNorm, ClipByNorm, ClipByValue
from ..stages.user_code import has_user_code, is_elementwise
from .replica_rule import once_there_is_one, transform, transform_and_apply

_ON_PARTS = (ClipByGlobalNorm, ClipByNorm, ClipByValue, AddDecayedWeights)
"""The ready pieces that need no whole gradient."""


def transform_and_apply_parts(optimizer: Any, pairs: Pairs) -> None:
    """Stages 4 and 5 where weights are divided over a mesh: each replica updates its parts, and its copies of whole weights.

    Context: replica.
    """
    with own_shards():
        transform_and_apply(optimizer, pairs, _transform, _decay_and_update)


def norms_over_parts(pairs: Pairs) -> contextlib.AbstractContextManager[None]:
    """Inside, norms of these gradients count each part once. Context: replica."""
    layouts = [layout_of(v) for _, v in pairs]
    return norms_over_shards([num_replicas() if layout is None else layout.copies for layout in layouts])


def check_hook_on_parts(hook: StepHook, pairs: Pairs, finite: Any) -> Any:
    """What a hook makes of the finite check and the parts of all replicas."""
    with norms_over_parts(pairs):
        return hook.check_gradients(pairs, finite)


def _transform(optimizer: Any, pairs: Pairs) -> Pairs:
    """Stage 4, on parts or on whole gradients and weights."""
    if all(type(each) in _ON_PARTS for each in optimizer.gradient_transformers):
        with norms_over_parts(pairs):
            return transform(optimizer, pairs)
    with _seeing_wholes():
        pairs = transform(optimizer, _gather(pairs))
    return [(g if (layout := layout_of(v)) is None else layout.own_part(g), v) for g, v in pairs]


def _decay_and_update(optimizer: Any, pairs: Pairs) -> None:
    """Weight decay and the update rule, on parts or on whole gradients, weights and state."""
    variables = [v for _, v in pairs]
    with contextlib.nullcontext() if is_elementwise(optimizer) else _seeing_wholes() as whole:
        with once_there_is_one(pairs):
            optimizer._apply_weight_decay(variables)
        if whole is not None:
            pairs = _gather(pairs)
            variables = [v if layout_of(v) is None else whole(raw_value(v)) for v in variables]
        rate = optimizer.learning_rate_for(variables)
        optimizer._backend_update_step([g for g, _ in pairs], variables, rate)


def _gather(pairs: Pairs) -> Pairs:
    return [(g if (layout := layout_of(v)) is None else layout.gather(g), v) for g, v in pairs]


@contextlib.contextmanager
def _seeing_wholes() -> Iterator[Callable[[ShardedValue], TensorInPlace]]:
    """Inside, this thread sees whole values, gathered at their first use; the parts of what it writes are kept."""
    found: dict[int, tuple[ShardedValue, TensorInPlace, tf.Tensor]] = {}

    def whole(value: ShardedValue) -> TensorInPlace:
        if id(value) not in found:
            assert value.layout is not None  # narrows the type
            tensor = value.layout.gather(value.own().read_value())
            found[id(value)] = value, TensorInPlace(value.key, tensor, value.name), tensor
        return found[id(value)][1]

    with seen_through(whole):
        yield whole
    for value, place, before in found.values():
        if place.tensor is not before and value.layout is not None:
            value.own().assign(value.layout.own_part(place.tensor))


def divide_state(optimizer: Any) -> None:
    """Divides state that was made before its weights were divided, as of a model that has moved to a mesh."""
    late: list[tuple[Any, Layout]] = []
    for each in inner_optimizers(optimizer) or [optimizer]:
        state = state_of(each)
        for variable in trained_variables(each):
            layout = layout_of(variable)
            if layout is not None:
                whole = [
                    held
                    for held in state(variable)
                    if held.shape == variable.shape and layout_of(held) is None
                ]
                late += [(held, layout) for held in whole]
    if late:
        strategy = tf.distribute.get_strategy()
        run_in_thread(lambda: [shard_variable(held, strategy, layout) for held, layout in late])


def check_parts(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raises a ValueError for what is not supported where weights are divided over a mesh."""
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
