"""What of the training state is sharded, said for a strategy."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import tensorflow as tf

from ...compat.replaced import wrap
from ...compat.variables import put_inside
from ..arguments import one_of, shown
from ..pipeline.pipeline import Pipeline
from .existing import check_nothing_exists
from .updates import take_sharded_too
from .weights import held_in_shards

LEVELS = ("optimizer", "gradients", "weights")
SHARDABLE = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_Home = TypeVar("_Home", bound=tf.distribute.Strategy | Pipeline)
_levels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def sharded(strategy: _Home, level: str = "optimizer") -> _Home:
    """Lets each replica of a strategy hold a part of the training state instead of all of it; the numbers stay the same.

    Bytes for each float32 parameter of Adam with N replicas, on each of them: 16 without, `4 + 4 + 8 / N` with the level
    "optimizer", `4 + 12 / N` with "gradients", `16 / N` with "weights", and what is whole for a moment.
    `docs/guides/sharded-state.md` says what travels, and when which level pays.

        strategy = unisono.distribute.sharded(tf.distribute.MirroredStrategy())
        with strategy.scope():
            model = ...

    Args:
        strategy: `tf.distribute.MirroredStrategy` or `tf.distribute.MultiWorkerMirroredStrategy`, of any size, or a
            `unisono.distribute.Pipeline` with `replicas`; with one replica nothing changes.
        level: "optimizer": slots, moving averages and the gradients that accumulation carries are held in parts;
            "gradients": the same, since a step sums gradients in parts in any case; "weights": also the trained weights of
            rank two and more, each of which is put together where a step reads it, forward and backward, for as long as it
            is used. In a Pipeline both of the first two hold the slots of a stage in parts by rows, one on the stage's
            device of each replica (`4 + 4 + 8 / R`), and "weights" is refused.

    Returns:
        The same strategy. Optimizers that are built under it from now on hold their slots in parts, and with "weights" what
        is created under it is never whole on a device for good.

    Raises:
        TypeError: it is not one of these strategies.
        ValueError: `level` is none of the levels, or is not the one that the strategy has, or a Pipeline cannot have it, or
            variables that it would shard exist already.

    Context: host, before the optimizer is built; with "weights" before the model is.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.
    """
    one_of("level", level, LEVELS)
    if isinstance(strategy, Pipeline):
        strategy.shard(level)
        return strategy
    if not isinstance(strategy, SHARDABLE):
        raise TypeError(
            "`strategy` must be a tf.distribute.MirroredStrategy or MultiWorkerMirroredStrategy, whose replicas have copies "
            f"of their own, or a Pipeline. Received: {shown(strategy)}"
        )
    if strategy not in _levels:
        check_nothing_exists(strategy, level)
        take_sharded_too(strategy)
    if _levels.setdefault(strategy, level) != level:
        raise ValueError(
            f"`level` is {_levels[strategy]!r} for this strategy already: make another strategy for another level. "
            f"Received: {level!r}"
        )
    if level == "weights":
        wrap("_initialize", _initialize)
    return strategy


def _initialize(original: Callable[..., None], variable: keras.Variable, value: Any) -> None:
    """Creates what a Keras variable holds."""
    strategy = tf.distribute.get_strategy()
    held = held_in_shards(strategy, variable, value) if level_of(strategy) == "weights" else None
    if held is None:
        original(variable, value)
    else:
        put_inside(variable, held)


def level_of(strategy: Any = None) -> str | None:
    """What is sharded under a strategy (None: the current one); None: nothing."""
    strategy = tf.distribute.get_strategy() if strategy is None else strategy
    return _levels.get(strategy) if strategy.num_replicas_in_sync > 1 else None
