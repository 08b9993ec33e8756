"""The random state of Keras and TensorFlow, and the state of a thread."""

import random
from typing import Any

import tensorflow as tf

from ..upstream_places import context, global_state, rng_utils, seed_generator, stateful_random_ops
from .variables import direct_writes

_OF_ONE_THREAD = ("stateless_scope", "symbolic_scope", "name_scope_stack", "uninitialized_variables")


def global_seed_generator_state(make: bool = False) -> Any:
    """Return the `keras.Variable` of the generator behind `seed=None`; None before its first use, unless `make`."""
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    if generator is None and make:
        generator = seed_generator.global_seed_generator()
    return None if generator is None else generator.state


def seeds_as_set() -> dict[str, int | None]:
    """Return the seeds set with `keras.utils.set_random_seed` and `tf.random.set_seed`; None without."""
    return {
        "keras.utils.set_random_seed": rng_utils.get_random_seed(),
        "tf.random.set_seed": context.global_seed(),
    }


def eager_seed_source() -> random.Random | None:
    """Return the generator of the seeds of eager random operations; None before its first use."""
    return getattr(context.context(), "_rng", None)


def global_generator() -> tf.random.Generator | None:
    """Return `tf.random.get_global_generator()` if one exists; None otherwise (the call would make one)."""
    return stateful_random_ops.global_generator


class thread_state:
    """Keras' state of this thread (seeds, dtype policy), which a replica's thread takes over by `enter`."""

    def __init__(self) -> None:
        # A single device makes the generator, from a random seed, only on its first use.
        drawn = random.getstate()
        with tf.init_scope(), direct_writes():  # not in the current graph or stateless scope
            seed_generator.global_seed_generator()
        random.setstate(drawn)
        self._attributes = dict(vars(global_state.GLOBAL_STATE_TRACKER))

    def enter(self) -> None:
        """Apply the captured state to this thread; state that the thread already has stays."""
        own = vars(global_state.GLOBAL_STATE_TRACKER)
        for name, value in self._attributes.items():
            if name not in _OF_ONE_THREAD:
                own.setdefault(name, value)
