"""Finds, saves and restores random generators: Keras', Python's, NumPy's, TensorFlow's, and those that a program holds."""

import collections
import contextlib
import functools
import json
import pickle
import random
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..compat.keras_private import seed_generators as private
from ..compat.keras_private.variables import raw_value
from ..distribute.workers.error_text import is_own_file

# Where objects are not looked into: none of theirs holds what is not found otherwise. A test runner holds all tests.
_NOT_OF_USERS = ("keras", "numpy", "tensorflow", "unisono", "_pytest", "pluggy")
_LIBRARIES = {*sys.stdlib_module_names, *_NOT_OF_USERS} - {"__main__"}
_MOST_ITEMS = 10_000  # of a container that is looked into: a longer one is data, such as a vocabulary
_MOST_VISITS = 100_000
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, np.ndarray})
_NO_HOLDERS = (tf.Tensor, np.ndarray)

WITH_VARIABLE = (tf.random.Generator, keras.random.SeedGenerator)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
GLOBAL_GENERATORS: dict[str, Any] = {
    "numpy.random": np.random.get_state.__self__,  # type: ignore[attr-defined]
    "random": random.getstate.__self__,  # type: ignore[attr-defined]
}
"""NumPy's legacy generator and Python's, which are in every backup."""


def capture(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of each generator that exists or that `find_generators` finds in `held`, a few kB. Context: host."""
    state: dict[str, Any] = {"python": _python_state(random.getstate()), "numpy": np.random.get_state()}
    seed = private.global_seed_generator_state()
    if seed is not None:
        state["keras"] = tf.convert_to_tensor(seed.value).numpy()
    source = private.eager_seed_source()
    if source is not None:
        state["tensorflow_seeds"] = _python_state(source.getstate())
    generator = private.global_generator()
    if generator is not None:
        state["tensorflow"] = {"state": generator.state.numpy(), "algorithm": int(generator.algorithm)}
    own = {name: text_of(each) for name, each in held.items() if name not in GLOBAL_GENERATORS}
    return {**state, "held": own} if own else state


def is_state_of_python(state: dict[str, Any]) -> bool:
    """Return whether a saved state is one of Python's generators; raise errors of many kinds if it is malformed."""
    random.Random().setstate(_python_tuple(state))
    return isinstance(state["gauss"], float | None)


def restore(state: dict[str, Any], held: Mapping[str, Any], owned: Sequence[Any] = ()) -> list[str]:
    """Restore each generator that has a saved state and still exists, but not those that the input restores (`owned`).

    Return the names of those that do not exist.
    """
    kept = {id(raw_value(each)) for each in owned}
    if "keras" in state:
        # Making Keras' generator draws from Python's: Python's is therefore set after it.
        seed = private.global_seed_generator_state(make=True)
        if id(raw_value(seed)) not in kept:
            seed.assign(state["keras"])
    if "tensorflow" in state:
        saved, generator = state["tensorflow"], private.global_generator()
        if generator is None or id(generator.state) not in kept:
            if generator is None or int(generator.algorithm) != saved["algorithm"]:
                generator = tf.random.Generator.from_state(saved["state"], saved["algorithm"])
                tf.random.set_global_generator(generator)
            generator.state.assign(saved["state"])
    source = private.eager_seed_source()
    if source is not None and "tensorflow_seeds" in state:
        source.setstate(_python_tuple(state["tensorflow_seeds"]))
    if id(GLOBAL_GENERATORS["numpy.random"]) not in kept:
        np.random.set_state(state["numpy"])
    if id(GLOBAL_GENERATORS["random"]) not in kept:
        random.setstate(_python_tuple(state["python"]))
    saved_states = state.get("held", {})
    for name, text in saved_states.items():
        if name in held and id(state_of(held[name])) not in kept:
            set_from_text(held[name], text)
    return sorted(saved_states.keys() - held.keys())


def _python_state(state: Sequence[Any]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": np.asarray(words, np.uint32), "gauss": gauss}


def _python_tuple(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(int(word) for word in state["words"]), state["gauss"]


def mark_of(generator: Any) -> bytes:
    """Return the state of a generator, which is equal as long as nothing draws from it."""
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(tf.convert_to_tensor(state_of(generator)).numpy())


def mark_each(generators: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the state of each generator, by its name."""
    return {name: mark_of(each) for name, each in generators.items()}


def state_of(generator: Any) -> Any:
    """Return what changes with each draw: the variable of a generator of TensorFlow or Keras, else the generator."""
    return raw_value(getattr(generator, "state", generator))


def text_of(generator: Any, mark: bytes | None = None) -> str:
    """Return the state of a generator as text, or an earlier one, of which `mark_of` has returned the `mark`."""
    return json.dumps(pickle.loads(mark or mark_of(generator)), default=lambda value: value.tolist())


def set_from_text(generator: Any, text: str) -> None:
    """Restore what `text_of` returned; raise a ValueError for the state of another kind of generator."""
    state = json.loads(text)
    try:
        if isinstance(generator, random.Random):
            version, words, gauss = state
            generator.setstate((version, tuple(words), gauss))
        elif isinstance(generator, WITH_VARIABLE):
            generator.state.assign(tf.constant(state, generator.state.dtype))
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(_with_arrays(state))
        else:
            generator.bit_generator.state = _with_arrays(state)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"a saved state fits no {type(generator).__name__}: {error}") from error


def _with_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _with_arrays(item) for key, item in state.items()}
    return np.asarray(state, np.uint64) if isinstance(state, list) else state


def find_global() -> dict[str, Any]:
    """Return the generators of the libraries that exist by now; what is drawn from them may make others."""
    found = {
        **GLOBAL_GENERATORS,
        "keras.random": private.global_seed_generator_state(),
        "tf.random": private.global_generator(),
        "tf.random's seeds": private.eager_seed_source(),
    }
    return {name: each for name, each in found.items() if each is not None}


def find_generators(roots: Mapping[str, Any]) -> dict[str, Any]:
    """Return NumPy's and Python's generators that `roots` reach, by the way to each, the same in every process.

    The user's own objects are followed: functions with their closures, defaults and modules, whatever they use there, and
    objects with their attributes and classes. Libraries are not.
    """
    known = {id(generator): name for name, generator in GLOBAL_GENERATORS.items()}
    return {
        known.get(id(leaf), path): leaf
        for path, leaf in find_reached(roots, GENERATORS)
        if not isinstance(leaf, random.SystemRandom)
    }


def find_reached(roots: Mapping[str, Any], kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the objects of these kinds that are reached from `roots`, each once, with the way to it, in a fixed order."""
    waiting = list(roots.items())[::-1]
    seen: dict[int, Any] = {}  # with the objects, so that no new one gets the number of one that is gone
    while waiting:
        path, value = waiting.pop()
        if len(seen) == _MOST_VISITS:
            end = f"The search for generators and variables ended at `{path}`, object {_MOST_VISITS:,}: what is after it is "
            warnings.warn(
                f"{end}not saved. Name generators by BackupAndRestore(generators=[...]).", stacklevel=2
            )
            return
        if id(value) in seen:
            continue
        leaf = isinstance(value, kinds)
        parts = [] if leaf else list(_parts(value))
        if not leaf and (not parts or len(parts) > _MOST_ITEMS):
            continue
        seen[id(value)] = value
        if leaf:
            yield path, value
        if isinstance(value, dict) and "__builtins__" in value:  # of a module: one path, whatever led here
            names = sorted(name for name in value if not name.startswith("__"))
            path, parts = str(value.get("__name__", path)), [(f".{name}", value[name]) for name in names]
        waiting += [(f"{path}{name}", part) for name, part in parts[::-1] if type(part) not in _PLAIN]


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """Return what a value is made of, with the words that lead there."""
    # Another mapping may open files where it is asked for items.
    keyed = isinstance(value, dict | types.MappingProxyType)
    if keyed or isinstance(value, list | tuple | collections.deque):
        if len(value) > _MOST_ITEMS:
            return ()
        items = sorted(value.items(), key=lambda item: str(item[0])) if keyed else enumerate(value)
        return [(f"[{key!r}]", item) for key, item in items]
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        own = [(".__func__", value.__func__)] if isinstance(value, types.MethodType) else []
        return [(".__self__", value.__self__), *own]
    if isinstance(value, types.FunctionType):
        return _parts_of_function(value) if is_of_user(value.__module__) else ()
    if isinstance(value, types.ModuleType):
        return [("", vars(value))] if is_own_file(getattr(value, "__file__", None) or "<frozen") else ()
    if isinstance(value, tf.types.experimental.PolymorphicFunction):
        return [("", getattr(value, "python_function", None))]
    if isinstance(value, type):
        held = [
            item
            for base in value.__mro__
            if is_of_user(base.__module__)
            for item in sorted(vars(base).items())
        ]
        return [(f".{name}", getattr(each, "__func__", getattr(each, "fget", each))) for name, each in held]
    holds = hasattr(value, "__dict__") and not isinstance(value, _NO_HOLDERS)
    if holds and is_of_user(type(value).__module__):
        return [*((f".{name}", part) for name, part in sorted(vars(value).items())), ("", type(value))]
    return ()


def find_closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of outer functions that a function uses, as far as they are assigned."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield from ((f" {name}", value) for name, value in find_closed_over(function))
    yield " defaults", (function.__defaults__, function.__kwdefaults__)
    if is_own_file(function.__code__.co_filename):
        yield "", function.__globals__


def is_of_user(module: Any) -> bool:
    """Return whether neither Python nor one of the libraries that are known defines it."""
    return str(module or "").partition(".")[0] not in _LIBRARIES  # a class may have anything there
