"""Creating an optimizer's variables wherever it is used first, and the optimizers that a model holds."""

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.layers import layers_of
from ..compat.keras_private.optimizers import find_wrapped_optimizers
from ..compat.keras_private.variables import stateless_scope
from ..compat.tensorflow_graphs.graphs import leave_as_written
from ..distribute.moved_variables import move_to_strategy
from ..distribute.step_context import current_step, step_scope

_HOLDING = (keras.optimizers.Optimizer, list, tuple, dict)
_lock = threading.RLock()


def ensure_built(optimizer: Any, variables: Sequence[Any]) -> None:
    """Build `optimizer`, unless it is built, in a separate thread: in traces and scopes variables cannot be created."""
    if optimizer.built:
        return
    strategy = getattr(current_step(), "builds_under", None) or tf.distribute.get_strategy()

    def create() -> None:
        with _lock:  # two threads may trace the first use at the same time
            if optimizer.built:
                return
            with step_scope(None), strategy.scope(), keras.name_scope(optimizer.name, caller=optimizer):
                for each in (optimizer, *inner_optimizers(optimizer)):
                    move_to_strategy(each, strategy)
                optimizer.build(list(variables))
                optimizer.built = True

    outside_replicas = tf.distribute.in_cross_replica_context() or not tf.distribute.has_strategy()
    if tf.executing_eagerly() and outside_replicas and stateless_scope() is None:
        create()
    else:
        run_in_thread(create)


def build_outside(build: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return the `build` of an optimizer's class, which a step can call: `ensure_built` then does."""

    @functools.wraps(build)
    def build_or_ensure(self: Any, variables: Any) -> None:
        if current_step() is None or self.built:
            build(self, variables)
        else:
            ensure_built(self, variables)

    return build_or_ensure


def inner_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that `optimizer` holds, at any depth; it builds and calls them."""
    found = {id(optimizer): optimizer}
    ahead = [optimizer]
    for each in ahead:
        new = [
            inner for inner in find_wrapped_optimizers(each) + attributes_of(each) if id(inner) not in found
        ]
        found.update({id(inner): inner for inner in new})
        ahead += new
    return list(found.values())[1:]


def attributes_of(holder: Any) -> list[Any]:
    """Return the optimizers among an object's attributes, or in its lists, tuples and dicts with public names."""
    found: list[Any] = []
    for name, value in getattr(holder, "__dict__", {}).items():
        if not isinstance(value, _HOLDING):
            continue
        if isinstance(value, keras.optimizers.Optimizer):
            found.append(value)
        elif not name.startswith("_"):
            values = value.values() if isinstance(value, dict) else value
            found += [each for each in values if isinstance(each, keras.optimizers.Optimizer)]
    return found


def optimizers_of(model: Any, of_layers: bool = False) -> list[Any]:
    """Return a model's optimizers, that of `compile` first, and its layers' for a custom step or if `of_layers`."""
    custom_step = getattr(model, "_overrides_step", lambda name: True)("train_step")
    holders = [model, *layers_of(model)[1:]] if custom_step or of_layers else [model]
    found = [
        getattr(model, "optimizer", None),
        *(each for holder in holders for each in attributes_of(holder)),
    ]
    return list({id(each): each for each in found if each is not None}.values())


@leave_as_written
def run_in_thread(fn: Callable[[], Any]) -> Any:
    """Run `fn()` in a separate thread and wait for it; return its result, or raise its error."""
    with concurrent.futures.ThreadPoolExecutor(1, "unisono-optimizer-build") as executor:
        return executor.submit(fn).result()
