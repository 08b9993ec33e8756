"""Stages 1 to 3 on shards of gradients, which stages a call runs, and the sharding of an optimizer's state."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.optimizers import overwritten_by_gradient
from ...compat.keras_private.variables import raw_value
from ...distribute.sharding.branches import if_all
from ...distribute.sharding.collectives import own_shard, reduce_scatter
from ...distribute.sharding.gradient_window import gradient_window
from ...distribute.sharding.sharded import level_of, unsharded_state
from ...distribute.sharding.sharded_value import created_in_shards, own_copy, shard_variable
from ...distribute.sharding.transient_weights import BackwardPass
from ..building import inner_optimizers, run_in_thread
from ..stages.aggregators import aggregate
from ..stages.call_options import CallOptions
from ..stages.clipping import norms_over_shards
from ..stages.run_stages import Stages
from ..stages.sparse_gradients import Pairs, fit_to_send, is_sparse
from .update import cut, transform_and_apply


def stages_of(optimizer: Any, options: CallOptions) -> Stages:
    """The stages of one call."""
    if level_of() is None:
        return _WHOLE
    _shard_existing_state(optimizer)
    return _SHARDED


class ShardedStages(Stages):
    """Each replica updates its shards: where the last bit of what it computes differs, no other replica has that shard.

    After stage 1 each replica has its shards of dense gradients.
    """

    branch = staticmethod(if_all)
    copy_of = staticmethod(own_copy)
    once = staticmethod(lambda optimizer, variables, write: write)
    transform_and_apply = staticmethod(transform_and_apply)

    def aggregate(self, optimizer: Any, pairs: Pairs, options: CallOptions) -> Pairs:
        """Stage 1; new values are whole, and so are sparse gradients that are summed here and not accumulated.

        An aggregator sums whole gradients, and so has the caller if aggregation is skipped: these are cut.
        """
        if options.skip_aggregation or optimizer.gradient_aggregator is not None:
            BackwardPass().gather_until()
            return cut(aggregate(optimizer, pairs, options))
        pairs = reduce_scattered(optimizer, pairs, options)
        parts = [part for each, part in optimizer.split(pairs) if each.gradient_accumulation_steps]
        accumulated = {id(v) for part in parts for _, v in part}
        return [cut([(g, v)])[0] if is_sparse(g) and id(v) in accumulated else (g, v) for g, v in pairs]

    def can_differ(self, optimizer: Any, options: CallOptions) -> bool:
        """Shards differ."""
        return True

    def record(self, watch: Any, pairs: Pairs, finite: Any) -> Any:
        """A `GradientWatch` records the shards of all replicas."""
        shards = [(own_shard(g, list(v.shape)) if _stays_whole(g, v) else g, v) for g, v in pairs]
        with norms_over_shards():
            return watch.record(shards, finite)


_WHOLE, _SHARDED = Stages(), ShardedStages()


def reduce_scattered(optimizer: Any, pairs: Pairs, options: CallOptions) -> Pairs:
    """Stage 1 in shards: sums gradients as they come, and gathers sharded weights in between.

    A window keeps the backward pass from running far ahead of the sums.
    """
    pairs = fit_to_send(pairs)
    scattered = [g is not None and not _stays_whole(g, v) for g, v in pairs]
    # Where the number of samples is unknown, a gradient's shape can be too: its variable's is known.
    given = [tf.ensure_shape(g, v.shape) for (g, v), cut in zip(pairs, scattered) if cut]
    backward, window = BackwardPass(), gradient_window()

    def before(pack: Sequence[tf.Tensor]) -> None:
        backward.gather_until(pack)
        if window is not None:
            window.before(pack)

    shards = iter(reduce_scatter(given, before, None if window is None else window.after))
    backward.gather_until()
    rest = [pair for pair, cut in zip(pairs, scattered) if not cut]
    summed = iter(aggregate(optimizer, rest, options))
    return [(next(shards), v) if cut else next(summed) for (_, v), cut in zip(pairs, scattered)]


def _stays_whole(gradient: Any, variable: Any) -> bool:
    return is_sparse(gradient) or overwritten_by_gradient(variable)


def created_as_shards(reference: Any, initializer: Any) -> contextlib.AbstractContextManager[Any]:
    """Around the creation of an optimizer's state for the trained variable `reference`: sharded if its strategy says so.

    Context: eager, in the scope of the strategy.
    """
    strategy = getattr(raw_value(reference), "distribute_strategy", None)
    if strategy is None or level_of(strategy) is None or overwritten_by_gradient(reference):
        return contextlib.nullcontext()
    return created_in_shards(strategy, list(reference.shape), initializer)


def _shard_existing_state(optimizer: Any) -> None:
    """Shards the state that a built optimizer made before it was ours, or under another strategy.

    Context: any; in a trace the variables are made in another thread.
    """
    strategy = tf.distribute.get_strategy()
    late = [v for each in (optimizer, *inner_optimizers(optimizer)) for v in unsharded_state(each)]
    if late:
        run_in_thread(lambda: [shard_variable(variable, strategy) for variable in late])
