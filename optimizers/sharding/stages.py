"""Stages 1 to 3 on shards, and which way a call of an optimizer goes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.optimizers import overwritten_by_gradient
from ...distribute.replicas import all_reduce_sum, num_replicas
from ...distribute.sharding.branches import if_all
from ...distribute.sharding.layout import own_shard
from ...distribute.sharding.levels import level_of
from ...distribute.sharding.moments import BackwardPass
from ...distribute.sharding.travel import reduce_scatter
from ...distribute.sharding.value import own_copy
from ...distribute.sharding.window import window_here
from ..building import inner_optimizers
from ..call_options import CallOptions
from ..stages import run_stages as whole
from ..stages.slices import values_of
from ..stages.slices_on_gpus import fit_to_travel
from ..stages.way import Way
from .slots import ensure_sharded
from .update import transform_and_apply

Pairs = list[tuple[Any, Any]]


def way_of(optimizer: Any, options: CallOptions) -> Way:
    """How the stages of this call are run.

    Shards of gradients are summed where whole ones are not wanted: by an aggregator, or by a caller who has summed them
    already.
    """
    if level_of() is None:
        return whole.WHOLE
    ensure_sharded(optimizer)
    if not options.skip_aggregation and optimizer.gradient_aggregator is None:
        return _OF_SHARDS
    accumulates = any(each.gradient_accumulation_steps for each in (optimizer, *inner_optimizers(optimizer)))
    return _CUT if accumulates else _OF_WHOLE_GRADIENTS


def aggregate(optimizer: Any, pairs: Pairs, options: CallOptions, weight: Any) -> Pairs:
    """Stage 1: this replica's shard of each dense gradient of the global batch; sparse ones and new values are whole."""
    pairs = fit_to_travel(pairs)
    scattered = [g is not None and not _stays_whole(g, v) for g, v in pairs]
    given = [_of_known_shape(g, v) for (g, v), cut in zip(pairs, scattered) if cut]
    shards = iter(_summed_as_they_come(given, weight))
    rest = [pair for pair, cut in zip(pairs, scattered) if not cut]
    summed = iter(whole.aggregate(optimizer, rest, options, weight))
    return [(next(shards), v) if cut else next(summed) for (_, v), cut in zip(pairs, scattered)]


def _summed_as_they_come(gradients: list[Any], weight: Any) -> list[tf.Tensor]:
    """Shards of sums: weights in shards are gathered in between, and the backward pass is kept from running far ahead."""
    backward, window = BackwardPass(), window_here()

    def before(pack: Sequence[tf.Tensor]) -> None:
        backward.gather_until(pack)
        if window is not None:
            window.before(pack)

    shards = reduce_scatter(gradients, weight, before, None if window is None else window.after)
    backward.gather_until()
    return shards


def aggregate_and_cut(optimizer: Any, pairs: Pairs, options: CallOptions, weight: Any) -> Pairs:
    """Stage 1 where whole gradients are summed and shards of them accumulated."""
    return cut(aggregate_whole(optimizer, pairs, options, weight))


def aggregate_whole(optimizer: Any, pairs: Pairs, options: CallOptions, weight: Any) -> Pairs:
    """Stage 1 where whole gradients are wanted."""
    BackwardPass().gather_until()
    return whole.aggregate(optimizer, pairs, options, weight)


def cut(pairs: Pairs) -> Pairs:
    """This replica's shard of each whole gradient."""
    return [(g if overwritten_by_gradient(v) else own_shard(g, list(v.shape)), v) for g, v in pairs]


def _of_known_shape(gradient: Any, variable: Any) -> Any:
    """A dense gradient with the shape of its variable: where the rows of a batch are not known, its own need not be."""
    return gradient if isinstance(gradient, tf.IndexedSlices) else tf.ensure_shape(gradient, variable.shape)


def all_finite(optimizer: Any, pairs: Pairs, options: CallOptions) -> tf.Tensor:
    """Stage 3: whether every number of every gradient is finite, also on the other replicas."""
    finite = [tf.reduce_all(tf.math.is_finite(tf.cast(values_of(g), v.dtype))) for g, v in pairs]
    verdict = tf.reduce_all(tf.stack(finite))
    return all_reduce_sum([tf.cast(verdict, tf.float32)])[0] == num_replicas()


def look(watch: Any, pairs: Pairs, verdict: Any) -> Any:
    """Has a `GradientWatch` look at the shards of all replicas."""
    shards = [(own_shard(g, list(v.shape)) if _stays_whole(g, v) else g, v) for g, v in pairs]
    return watch.look(shards, verdict, lambda vector: all_reduce_sum([vector])[0])


def _stays_whole(gradient: Any, variable: Any) -> bool:
    return _is_sparse(gradient) or overwritten_by_gradient(variable)


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _update(
    optimizer: Any,
    variables: list[Any],
    earlier: Any,
    verdict: Any,
    gradients: Any,
    weight: Any,
    *,
    of_shards: bool,
) -> None:
    """Stages 4 and 5."""
    if of_shards:
        pairs = list(zip(gradients, variables))
        carried = {
            id(v)
            for each, part in optimizer.split(pairs)
            if each.gradient_accumulation_steps
            for _, v in part
        }
        gradients = [
            cut([pair])[0][0] if id(pair[1]) in carried and _is_sparse(pair[0]) else pair[0] for pair in pairs
        ]
    apply = functools.partial(transform_and_apply, of_shards=of_shards)
    whole.update(
        optimizer,
        variables,
        earlier,
        verdict,
        gradients,
        weight,
        apply=apply,
        branch=if_all,
        copy_of=own_copy,
    )


def _once(optimizer: Any, variables: Any, write: Any) -> Any:
    """Each replica updates its shards: what it computes differently in the last bit is nobody else's."""
    return write


_update_shards = functools.partial(_update, of_shards=True)
_OF_SHARDS = Way(aggregate, all_finite, look, _update_shards, _once)
_CUT = Way(aggregate_and_cut, all_finite, look, _update_shards, _once)
_OF_WHOLE_GRADIENTS = Way(
    aggregate_whole,
    whole.all_finite,
    whole.WHOLE.look,
    functools.partial(_update, of_shards=False),
    _once,
)
