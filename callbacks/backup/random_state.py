"""The random generators: Keras' global one, Python's, NumPy's, TensorFlow's, and those that a program holds itself."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.keras_private.random_state import (
    eager_seed_source,
    global_generator,
    global_seed_generator_state,
)
from ...compat.keras_private.variables import raw_value
from .generators import GLOBAL_GENERATORS, set_from_text, text_of


def capture(held: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state of each generator that exists; a few kilobytes of plain values and arrays. Context: host.

    Args:
        held: those that the program holds itself, see `found_generators`; the global ones among them are not repeated.
    """
    state: dict[str, Any] = {"python": _python_state(random.getstate()), "numpy": np.random.get_state()}
    seed = global_seed_generator_state()
    if seed is not None:
        state["keras"] = tf.convert_to_tensor(seed.value).numpy()
    source = eager_seed_source()
    if source is not None:
        state["tensorflow_seeds"] = _python_state(source.getstate())
    generator = global_generator()
    if generator is not None:
        state["tensorflow"] = {"state": generator.state.numpy(), "algorithm": int(generator.algorithm)}
    own = {name: text_of(each) for name, each in (held or {}).items() if name not in GLOBAL_GENERATORS}
    return {**state, "held": own} if own else state


def is_state_of_python(state: dict[str, Any]) -> bool:
    """Whether a saved state is one of Python's generators; errors of many kinds where it has another form."""
    random.Random().setstate(_python_tuple(state))
    return isinstance(state["gauss"], float | None)


def restore(state: dict[str, Any], held: Mapping[str, Any] | None = None, owned: Sequence[Any] = ()) -> None:
    """Restores the `state` of every generator that `capture` found, except for those that the input has restored (`owned`).

    Generators that have no saved state, and those that are gone, are left.
    """
    kept = {id(raw_value(each)) for each in owned}
    if "keras" in state:
        # Making Keras' generator draws from Python's: Python's is therefore set after it.
        seed = global_seed_generator_state(make=True)
        if id(raw_value(seed)) not in kept:
            seed.assign(state["keras"])
    if "tensorflow" in state:
        _restore_global(state["tensorflow"], kept)
    source = eager_seed_source()
    if source is not None and "tensorflow_seeds" in state:
        source.setstate(_python_tuple(state["tensorflow_seeds"]))
    if id(GLOBAL_GENERATORS["numpy.random"]) not in kept:
        np.random.set_state(state["numpy"])
    if id(GLOBAL_GENERATORS["random"]) not in kept:
        random.setstate(_python_tuple(state["python"]))
    held = held or {}
    for name, text in state.get("held", {}).items():
        if name in held and id(held[name]) not in kept:
            set_from_text(held[name], text)


def _restore_global(saved: dict[str, Any], kept: set[int]) -> None:
    """TensorFlow's global generator."""
    generator = global_generator()
    if generator is None or id(generator.state) not in kept:
        if generator is None or int(generator.algorithm) != saved["algorithm"]:
            generator = tf.random.Generator.from_state(saved["state"], saved["algorithm"])
            tf.random.set_global_generator(generator)
        generator.state.assign(saved["state"])


def _python_state(state: Sequence[Any]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": np.asarray(words, np.uint32), "gauss": gauss}


def _python_tuple(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(int(word) for word in state["words"]), state["gauss"]
