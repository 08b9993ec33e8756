"""The level of sharding of the training state (ZeRO-2 or 3), set for a strategy."""

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
import tensorflow as tf

from ...compat.keras_private.layers import is_made_by_layer
from ...compat.keras_private.optimizers import (
    call_count,
    overwritten_by_gradient,
    own_learning_rate,
    own_variables,
    trained_variables,
)
from ...compat.keras_private.training import strategy_of
from ...compat.keras_private.variables import put_inside, raw_value
from ...compat.patches import wrap
from ..arguments import one_of, show
from ..mesh import OnMesh
from ..pipeline.pipeline import Pipeline
from ..step_context import here
from .sharded_value import ShardedValue, is_shardable, is_sharded, make_sharded_weight

LEVELS = ("optimizer", "weights")
SHARDABLE = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
Strategy = TypeVar("Strategy", bound=tf.distribute.Strategy | Pipeline)
_PLAIN = (
    "The model is a plain keras.Model, which cannot train or predict with weights that are divided over replicas: make it "
    "a `unisono.Model` or `unisono.Sequential`, or convert it with `unisono.adopt(model)`."
)
_levels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def sharded(strategy: Strategy, level: str = "optimizer") -> Strategy:
    """Shard the training state over the replicas of a strategy; the results stay the same.

    With Adam and N replicas, a float32 parameter takes 16 bytes on each replica without sharding, `4 + 12 / N` with the
    level "optimizer", and `16 / N` with "weights", where transient full-size tensors are added.
    `docs/guides/sharded-state.md` describes the communication, and when each level pays.

    Args:
        strategy: `tf.distribute.MirroredStrategy` or `tf.distribute.MultiWorkerMirroredStrategy`, of any size, or a
            `unisono.distribute.Pipeline` with `replicas`; with one replica nothing changes.
        level: "optimizer": optimizer state, moving averages and gradients are sharded (ZeRO-2, since reduce-scattering
            gradients costs no more than ZeRO-1); "weights": also the trained weights of rank two and more (ZeRO-3), each of
            which is all-gathered where a step reads it, forward and backward, for as long as it is used. In a Pipeline
            "optimizer" shards the optimizer state of a stage over its devices of all replicas (`4 + 4 + 8 / R`), and
            "weights" raises.

    Returns:
        The same strategy. Optimizers that are built under it from now on shard their state, and with "weights" Keras
        variables created under it have their full size on a device only transiently; a `tf.Variable` stays whole.

    Raises:
        TypeError: `strategy` is not one of these strategies.
        ValueError: `level` is not a level, or differs from the level that the strategy has, or is not for a Pipeline,
            or variables that it would shard exist already.

    Context: host, before the optimizer is built; with "weights" before the model is.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.

    Examples:
        >>> strategy = unisono.distribute.sharded(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
        >>> with strategy.scope():
        ...     sharded = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    """
    if isinstance(level, str) and level == "gradients":
        raise ValueError('`level="gradients"` is gone: pass "optimizer", which shards gradients, too.')
    one_of("level", level, LEVELS)
    if isinstance(strategy, Pipeline):
        strategy.shard(level)
        return strategy
    if not isinstance(strategy, SHARDABLE):
        raise TypeError(
            "`strategy` must be a tf.distribute.MirroredStrategy, a MultiWorkerMirroredStrategy or a Pipeline. "
            f"Received: {show(strategy)}"
        )
    if strategy not in _levels:
        _check_nothing_exists(strategy, level)
        accept_sharded_variables(strategy)
    if _levels.setdefault(strategy, level) != level:
        raise ValueError(
            f"`level` is {_levels[strategy]!r} for this strategy already: create another strategy for a different level. "
            f"Received: {level!r}"
        )
    if level == "weights":
        _create_divided()
    return strategy


def _initialize(original: Callable[..., None], variable: keras.Variable, value: Any) -> None:
    """Create the variable inside a Keras variable."""
    strategy = tf.distribute.get_strategy()
    held, flat = None, level_of(strategy) == "weights"
    # It is trained, or one that a layer holds, such as a frozen weight.
    is_weight = variable.trainable or here.moves_weights or is_made_by_layer()
    if is_weight if isinstance(strategy, OnMesh) else flat:
        held = make_sharded_weight(strategy, variable, value, flat)
    if held is None:
        original(variable, value)
    else:
        put_inside(variable, held)


def divide_weights(strategy: tf.distribute.Strategy) -> None:
    """Give Keras variables that are created under a strategy its layouts, and reject models of plain Keras there."""
    accept_sharded_variables(strategy)
    _create_divided()


def _create_divided() -> None:
    wrap("_initialize", _initialize)
    wrap("_assert_compile_called", _reject_plain)  # first in every method for training and evaluation
    wrap("make_predict_function", _reject_plain)


def _reject_plain(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Let a method of plain Keras reject a model whose strategy divides weights."""
    home = strategy_of(model)
    divides = isinstance(home, OnMesh) or (home is not None and level_of(home) == "weights")
    if divides and not hasattr(model, "explain_step"):
        raise ValueError(_PLAIN)
    return original(model, *args, **kwargs)


def level_of(strategy: Any = None) -> str | None:
    """Return the level of sharding of a strategy (None: the current one); None: nothing is sharded."""
    strategy = strategy or tf.distribute.get_strategy()
    return _levels.get(strategy) if strategy.num_replicas_in_sync > 1 else None


def _check_nothing_exists(strategy: tf.distribute.Strategy, level: str) -> None:
    """Raise a ValueError for a level that is set after its variables exist: compiled steps depend on their form.

    Those are the unsharded state of a live optimizer, and with "weights" a live unsharded variable.
    """
    if strategy.num_replicas_in_sync == 1:
        return
    gc.collect()  # unreferenced variables do not count
    for each in gc.get_objects():
        late = next(_whole_under(strategy, each, level), None)
        if late is not None:
            when = "creating the model" if level == "weights" else "building the optimizer, which `fit` does"
            raise ValueError(
                f"`sharded(strategy, level={level!r})` was called too late: {late.path!r} exists already, unsharded. "
                f"Call it before {when}; for existing variables create another strategy and a new model."
            )


def _whole_under(strategy: tf.distribute.Strategy, owner: Any, level: str) -> Iterator[keras.Variable]:
    kind = type(owner)
    found: list[keras.Variable] = []
    if issubclass(kind, keras.optimizers.Optimizer) and vars(owner).get("built"):
        found = find_unsharded_state(owner)
    elif level == "weights" and issubclass(kind, keras.Variable):
        found = [owner] if is_shardable(owner, owner.shape or ()) and not is_sharded(owner) else []
    return (v for v in found if getattr(raw_value(v), "distribute_strategy", None) is strategy)


def find_unsharded_state(optimizer: Any) -> list[keras.Variable]:
    """Return unsharded optimizer state that should be sharded: variables shaped like a trained one, except scalars."""
    shapes = {tuple(v.shape) for v in trained_variables(optimizer) if not overwritten_by_gradient(v)} - {()}
    others = {id(call_count(optimizer)), id(own_learning_rate(optimizer))}
    return [
        v
        for v in own_variables(optimizer)
        if tuple(v.shape) in shapes and id(v) not in others and not is_sharded(v)
    ]


def accept_sharded_variables(strategy: tf.distribute.Strategy) -> None:
    """Let two methods of `strategy.extended` take sharded variables.

    - `update(variable, fn, args)`, which callbacks of Keras call: `fn` sees whole variables. TensorFlow's own version runs
        `fn` on each copy of the variable with the copies of the arguments; shards are not copies.
    - `colocate_vars_with(variable)`, in which optimizers create their state: it is on the replicas' devices in any case.
    """
    colocate: Callable[[Any], Any] = strategy.extended.colocate_vars_with
    original: Callable[..., Any] = strategy.extended.update

    def colocated(colocate_with_variable: Any) -> Any:
        sharded = isinstance(colocate_with_variable, ShardedValue)
        return contextlib.nullcontext() if sharded else colocate(colocate_with_variable)

    def update(
        var: Any, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        kwargs = kwargs or {}
        given = [each for each in args if isinstance(each, tf.distribute.DistributedValues)]
        own = any(not isinstance(each, tf.Variable) for each in given)  # each replica's own gradient
        if own and isinstance(var, ShardedValue):
            raise ValueError(_PLAIN)
        if not any(isinstance(each, ShardedValue) for each in (var, *args, *kwargs.values())):
            return original(var, fn, args=args, kwargs=kwargs, group=group)
        if here.updates_sharded:  # a copied variable is assigned a sharded one
            args, kwargs = tf.nest.map_structure(
                lambda each: tf.convert_to_tensor(each) if isinstance(each, ShardedValue) else each,
                (tuple(args), kwargs),
            )
            return original(var, fn, args=args, kwargs=kwargs, group=group)
        with here.set_to(updates_sharded=True):
            return fn(var, *args, **kwargs)

    strategy.extended.colocate_vars_with = colocated  # pyright: ignore[reportAttributeAccessIssue]
    strategy.extended.update = update  # pyright: ignore[reportAttributeAccessIssue]
