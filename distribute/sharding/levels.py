"""What of the training state is sharded, said for a strategy."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from ..arguments import one_of, shown
from .updates import update_sharded_too

LEVELS = ("optimizer", "gradients")
SHARDABLE = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_levels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def sharded(strategy: tf.distribute.Strategy, level: str = "optimizer") -> tf.distribute.Strategy:
    """Lets each replica of a strategy hold a part of the training state instead of all of it; the numbers stay the same.

    Bytes for each float32 parameter of Adam with N replicas, on each of them: 16 without, `4 + 4 + 8 / N` with the level
    "optimizer", `4 + 12 / N` with "gradients". `docs/guides/sharded-state.md` says what travels, and when which level pays.

        strategy = unisono.distribute.sharded(tf.distribute.MirroredStrategy())
        with strategy.scope():
            model = ...

    Args:
        strategy: `tf.distribute.MirroredStrategy` or `tf.distribute.MultiWorkerMirroredStrategy`, of any size; with one
            replica nothing changes.
        level: "optimizer": slots and moving averages are held in parts; "gradients": the gradients that accumulation
            carries, too.

    Returns:
        The same strategy. Optimizers that are built under it from now on hold their slots in parts.

    Raises:
        TypeError: it is not one of these strategies.
        ValueError: `level` is none of the levels, or is not the one that the strategy has.

    Context: host, before the optimizer is built.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.
    """
    if level == "weights":
        raise ValueError(
            'level="weights" is not supported: the graph of a step holds every gathered weight until its backward pass, so '
            'nothing would be saved; use level="gradients", and a unisono.distribute.Pipeline where the weights themselves '
            "do not fit."
        )
    one_of("level", level, LEVELS)
    if not isinstance(strategy, SHARDABLE):
        raise TypeError(
            "`strategy` must be a tf.distribute.MirroredStrategy or MultiWorkerMirroredStrategy, whose replicas have copies "
            f"of their own. Received: {shown(strategy)}"
        )
    if strategy not in _levels:
        update_sharded_too(strategy)
    if _levels.setdefault(strategy, level) != level:
        raise ValueError(
            f"`level` is {_levels[strategy]!r} for this strategy already: make another strategy for another level. "
            f"Received: {level!r}"
        )
    return strategy


def level_of(strategy: Any = None) -> str | None:
    """What is sharded under a strategy (None: the current one); None: nothing."""
    strategy = tf.distribute.get_strategy() if strategy is None else strategy
    return _levels.get(strategy) if strategy.num_replicas_in_sync > 1 else None
