"""Save and restore the state of callbacks, by their `get_state` and `set_state` or, for Keras' own, by functions here."""

import collections
import copy
import functools
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras

from ...compat.keras_private.callbacks import CALLBACK_ATTRIBUTES
from ..callback import hook
from ..safe_file import write_safely
from .files.schema import is_count, is_number, match

# The forms of the states of Keras' callbacks and ours; an entry without one is a number of at least 0.
_FORMS: dict[str, Any] = {
    **dict.fromkeys(("epoch", "saved"), list),
    **dict.fromkeys(("size", "position"), is_count),
    **dict.fromkeys(("last_batch", "_last_batch_seen"), (int, type(None))),
    "history": {"*": list},
    "best": lambda value: value is None or is_number(value),
    "best_weights": (list, type(None)),
    "sums": list,
    "keys": lambda value: all(isinstance(key, str) for key in value or ()),
    "text": bytes,
}
# Attributes of Keras' callbacks, and by habit of a user's own, that say what a callback is for.
_PURPOSE = ("name", "monitor", "mode")
_PATHS = ("filepath", "filename", "log_dir", "directory", "path")


def capture(callbacks: list[Any]) -> list[dict[str, Any]]:
    """Return the state of every callback that has one, with its class and what tells it from others of that class."""
    return [
        {"name": type(callback).__name__, "purpose": purpose_of(callback), "state": state}
        for callback in callbacks
        if (state := _state_methods(callback)[0]()) is not None
    ]


def restore(callbacks: list[Any], saved: list[dict[str, Any]]) -> list[str]:
    """Restore the state of every callback. Return the names of saved states that match no callback for certain.

    `set_state` is called after `on_train_begin` and, within an epoch, again after `on_epoch_begin`, which may reset it.
    """
    setters = {id(callback): _state_methods(callback)[1] for callback in callbacks}
    pairs = match_callbacks(saved, [callback for callback in callbacks if setters[id(callback)] is not None])
    for number, callback in pairs.items():
        state, set_ = saved[number]["state"], setters[id(callback)]
        get = hook(callback, "get_state")
        if get is None or get.__module__.startswith("unisono."):  # a class of Keras or of ours
            _check(state, saved[number]["name"], callback.model)
        if set_ is not None:
            set_(state)
    return [title(each["name"], each["purpose"]) for i, each in enumerate(saved) if i not in pairs]


def purpose_of(callback: Any) -> dict[str, str]:
    """Return what distinguishes a callback from others of its class: what it monitors, and where it writes."""
    found = {name: getattr(callback, name, None) for name in (*_PURPOSE, *_PATHS)}
    return {name: os.fspath(value) for name, value in found.items() if isinstance(value, str | os.PathLike)}


def name_callbacks(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return callbacks by unique names: `callback EarlyStopping(val_loss, min)`; a second one of the same gets a number."""
    seen: collections.Counter[str] = collections.Counter()
    result = {}
    for callback in callbacks:
        name = f"callback {title(type(callback).__name__, purpose_of(callback))}"
        seen[name] += 1
        result[name if seen[name] == 1 else f"{name}#{seen[name]}"] = callback
    return result


def title(name: str, purpose: dict[str, str]) -> str:
    """Return a class with its purpose, for messages."""
    words = ", ".join(value for value in purpose.values() if value != "auto")
    return f"{name}({words})" if words else name


# What must be equal for a state to belong to a callback of its class, the most certain first.
_SAME_PURPOSE: tuple[Callable[[dict[str, str]], dict[str, str]], ...] = (
    lambda purpose: purpose,
    lambda purpose: {name: os.path.basename(v) if name in _PATHS else v for name, v in purpose.items()},
    lambda purpose: {name: v for name, v in purpose.items() if name not in _PATHS},
)


def match_callbacks(saved: Sequence[dict[str, Any]], callbacks: Sequence[Any]) -> dict[int, Any]:
    """Return the callback for each saved state that has one, by the number of the state.

    A state goes to a callback of the same class that monitors the same. Among several of them those with the same paths
    belong together, then those whose files have the same names; the others go in order, if there are as many as before.
    """
    found: dict[int, Any] = {}
    for part in _SAME_PURPOSE:
        groups: dict[Hashable, tuple[list[int], list[Any]]] = collections.defaultdict(lambda: ([], []))
        for number, entry in enumerate(saved):
            if number not in found:
                groups[entry["name"], tuple(part(entry["purpose"]).items())][0].append(number)
        for callback in callbacks:
            if not any(callback is each for each in found.values()):
                key = type(callback).__name__, tuple(part(purpose_of(callback)).items())
                groups[key][1].append(callback)
        for numbers, alike in groups.values():
            if len(numbers) == len(alike):
                found.update(zip(numbers, alike))
    return found


def _check(state: Any, where: str, model: Any) -> None:
    """Raise a TypeError for a state that Keras' callbacks and ours would fail with in a later hook."""
    for name, value in dict(state).items():
        match(value, _FORMS.get(name, lambda value: is_number(value) and value >= 0), f"{name} of {where}")
    for name, group in (("best_weights", "weights"), ("sums", "trainable_weights")):
        shapes = [each.shape for each in state.get(name) or ()]
        if shapes and shapes != [tuple(v.shape) for v in getattr(model, group)]:
            raise TypeError(f"the weights in {where} have other shapes")


def _state_methods(callback: Any) -> tuple[Callable[[], Any], Callable[[Any], None] | None]:
    """Return the functions that return the state of a callback, or None, and restore it; None where it has no such state."""
    get, set_ = hook(callback, "get_state"), hook(callback, "set_state")
    if get is not None or set_ is not None:  # the user's methods may change arguments and results
        restore_copy = set_ and (lambda state: set_(copy.deepcopy(state)))
        return lambda: get and copy.deepcopy(get()), restore_copy
    if isinstance(callback, keras.callbacks.CSVLogger):
        return functools.partial(_csv_state, callback), functools.partial(_set_csv_state, callback)
    names = (cls.__name__ for cls in type(callback).__mro__ if cls.__module__.startswith("keras."))
    attributes = next((CALLBACK_ATTRIBUTES[name] for name in names if name in CALLBACK_ATTRIBUTES), None)
    if attributes is None:
        return lambda: None, None

    def set_attributes(state: dict[str, Any]) -> None:
        for name in set(attributes) & state.keys():
            setattr(callback, name, _copy_containers(state[name]))

    held = [name for name in attributes if hasattr(callback, name)]
    return lambda: {name: _copy_containers(getattr(callback, name)) for name in held}, set_attributes


def _copy_containers(value: Any) -> Any:
    """Copy containers, but not arrays, as Keras replaces them and never writes into one."""
    if isinstance(value, dict):
        return {key: _copy_containers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_containers(item) for item in value]
    return value


def _csv_state(callback: Any) -> dict[str, Any] | None:
    """Return the text of the file of a `CSVLogger` that overwrites it, or the length of one that appends."""
    if callback.csv_file is None or callback.csv_file.closed:
        return None
    callback.csv_file.flush()
    started = callback.writer is not None
    state = {"keys": callback.keys, "header": callback.append_header and not started, "writer": started}
    if callback.append:
        return {**state, "position": os.path.getsize(callback.filename)}
    return {**state, "text": Path(callback.filename).read_bytes()}


def _set_csv_state(callback: Any, state: dict[str, Any]) -> None:
    """Restore the lines that the file had when the backup was made: none is lost and none appears twice."""
    path = Path(callback.filename)
    if callback.csv_file is None:
        return
    callback.csv_file.close()
    if "text" in state:
        write_safely(path, lambda stream: stream.write(state["text"]))
    elif path.stat().st_size < state["position"]:
        warnings.warn(
            f"CSVLogger cannot restore missing lines: {path} has {path.stat().st_size} bytes, but had {state['position']} "
            "at the time of the backup. Training continues without them."
        )
    else:
        os.truncate(path, state["position"])
    callback.csv_file = open(path, "a")  # noqa: SIM115 (CSVLogger closes it)
    callback.keys = None if state["keys"] is None else list(state["keys"])
    callback.append_header = state["header"]
    callback.writer = None
