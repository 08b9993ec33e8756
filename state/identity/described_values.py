"""The settings of a model, an optimizer, a loss or a function, as JSON values that can be compared."""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.keras_private.layers import layers_of, layers_within
from ...compat.keras_private.training import compile_config
from ...optimizers.building import optimizers_of
from ..random_state import is_of_user
from .described_functions import CODE, FUNCTIONS, VALUES, describe_code, describe_function, digest

# Names that say where a class is defined or that Keras numbers; and what follows from the rest.
_IGNORED = ("module", "registered_name", "build_config", "compile_config", "shared_object_id")
_LAMBDA = "<lambda>"  # which Keras writes with its file and line
_MOST_ITEMS = 64  # of a list that is kept as it is; of a longer one a checksum


def settings_of(model: Any) -> dict[str, Any]:
    """Return the settings of a model with all layers in it and how they are connected, of its optimizers and of its loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns about functions in a configuration that is to be stored
        optimizer = getattr(model, "optimizer", None)
        others = [plain(each) for each in optimizers_of(model) if each is not optimizer]
        compiled = compile_config(model) if optimizer is not None else {}
        return {
            "model": _settings_of_layer(model, set()),
            "code": plain([{"name": each.name, **_describe_own_code(each)} for each in layers_of(model)]),
            "optimizer": plain(optimizer),
            **({"other optimizers": others} if others else {}),
            "loss": plain(getattr(model, "loss", None)),
            "loss_weights": plain(compiled.get("loss_weights")),
        }


def plain(value: Any) -> Any:
    """Return settings as JSON values; a number for the learning rate is state, and left out."""
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list | tuple):
        items = [plain(item) for item in value]
        return items if len(items) <= _MOST_ITEMS else digest(json.dumps(items).encode())
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else repr(value)
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, FUNCTIONS):
        return describe_function(value)
    if hasattr(value, "get_config"):
        code = _describe_own_code(value)
        return {"class": type(value).__name__, **plain(config_of(value)), **({"code": code} if code else {})}
    cls = value if isinstance(value, type) else type(value)
    return getattr(value, "__qualname__", cls.__qualname__) + (
        describe_code(cls) if is_of_user(cls.__module__) else ""
    )


def config_of(value: Any) -> dict[str, Any]:
    """Return `value.get_config()`; empty if it has none, or that fails."""
    try:
        config = value.get_config()
    except Exception:  # a custom class may have none, and training does not need it
        return {}
    return dict(config) if isinstance(config, Mapping) else {}


def _describe_own_code(value: Any) -> dict[str, Any]:
    """Return the source of an object's class, and of the functions and objects in its settings, as far as the user's."""
    config, cls, found = config_of(value), type(value), {}
    for name, each in getattr(value, "__dict__", {}).items():
        functions = [
            one for one in (each if isinstance(each, list | tuple) else [each]) if isinstance(one, FUNCTIONS)
        ]
        if functions and not hasattr(cls, name):
            found[name] = plain(
                [one for one in functions if is_of_user(getattr(one, "func", one).__module__)]
            )
        elif name.removeprefix("_") in config and not isinstance(each, keras.layers.Layer):
            found[name] = _describe_own_code(each)
    found["source"] = [describe_code(base) for base in cls.__mro__ if is_of_user(base.__module__)]
    return {name: each for name, each in found.items() if each}


def differences(what: str, saved: Any, now: Any, same_versions: bool = True) -> Iterator[str]:
    """Yield one phrase for each setting of `what` that differs: `plain` or `settings_of`, in the backup and now.

    With other versions of Python or Keras, settings that only one of them knows do not count.
    """
    if isinstance(saved, Mapping) and isinstance(now, Mapping) and saved.get("class") == now.get("class"):
        for key in {**saved, **now}:
            if same_versions or (key in saved and key in now):
                yield from differences(f"{what} {key}", saved.get(key), now.get(key), same_versions)
        return
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        for number, (old, new) in enumerate(zip(saved, now)):
            names = [item.get("name") for item in (old, new) if isinstance(item, Mapping)]
            named = len(names) == 2 and names[0] == names[1] and names[0] is not None
            item = f"{what.removesuffix(' layers')} {names[0]}" if named else f"{what} {number}"
            yield from differences(item, old, new, same_versions)
        return
    if isinstance(now, str) and not same_versions:
        if now == _LAMBDA:
            return
        saved, now = (re.split(f"{CODE}|{VALUES}", str(text))[0] for text in (saved, now))
    if saved != now:
        yield f"{what}: {_show(saved)} in the backup, {_show(now)} now"


def _settings_of_layer(layer: Any, seen: set[int]) -> dict[str, Any]:
    seen.add(id(layer))
    config = config_of(layer)
    settings = {"class": type(layer).__name__, **plain(_with_numbered_layers(config))}
    if "layers" not in config:
        inner = [each for each in layers_within(layer) if id(each) not in seen]
        if inner:
            settings["layers"] = [_settings_of_layer(each, seen) for each in inner]
    return settings


def _with_numbered_layers(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with layers connected by their order, as Keras' own names count on in a process."""
    layers = config.get("layers")
    if not isinstance(layers, list):
        return config
    names = [entry.get("config", {}).get("name") for entry in layers if isinstance(entry, Mapping)]
    numbers = {name: f"layer {number}" for number, name in enumerate(names) if isinstance(name, str)}

    def renamed(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: renamed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [renamed(item) for item in value]
        return numbers.get(value, value) if isinstance(value, str) else value

    result = {key: renamed(config[key]) if key.endswith("_layers") else config[key] for key in config}
    result["layers"] = layers = list(layers)
    for i, entry in enumerate(layers):
        if isinstance(entry, Mapping):
            layers[i] = {**entry, "inbound_nodes": renamed(entry.get("inbound_nodes"))}
    return result


def _plain_mapping(value: Mapping[Any, Any]) -> Any:
    dumped = value.get("value") if len(value) == 1 else None  # of an activation Keras keeps this part alone
    if value.get("class_name") == "__lambda__" or (
        isinstance(dumped, list | tuple) and isinstance(dumped[0], str)
    ):
        return _LAMBDA
    result = {}
    for key, item in value.items():
        if key in _IGNORED or (key == "learning_rate" and isinstance(item, float | int)):
            continue
        numbered = key == "name" and isinstance(item, str)
        result[str(key)] = re.sub(r"_\d+$", "", item) if numbered else plain(item)
    if "class_name" in result and isinstance(result.get("config"), Mapping):
        result = {"class": result.pop("class_name"), **result.pop("config"), **result}
    return result


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("class", dict(value))
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


MOST_BYTES = 2**26
"""This many bytes of each array are read: all of a small one, 64 blocks spread over a large one."""
_BLOCKS = 64


def checksum(structure: Any) -> str | None:
    """Return a checksum of structure, dtypes, shapes and samples of a nest of arrays; None if it cannot be sliced."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        for path, leaf in keras.tree.flatten_with_path(structure):
            digest.update(f"{path}:".encode())
            for part in tf.nest.flatten(leaf, expand_composites=True):
                for piece in _pieces(part):
                    digest.update(piece)
    except (AttributeError, KeyError, TypeError, ValueError, tf.errors.OpError):
        return None  # a variant has no NumPy dtype
    return digest.hexdigest()


def _pieces(leaf: Any) -> Iterator[bytes]:
    """Yield the data for the checksum of one array."""
    if leaf is None:
        yield b"None;"
        return
    if not hasattr(leaf, "shape") or not hasattr(leaf, "__getitem__"):
        leaf = np.asarray(leaf)
    shape, dtype = tuple(leaf.shape), np.dtype(getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype))
    yield f"{dtype.name}{shape};".encode()
    if not shape:
        yield _bytes(leaf)
        return
    samples = int(shape[0])
    sample_bytes = max(1, int(np.prod([int(size) for size in shape[1:]])) * max(dtype.itemsize, 1))
    if samples * sample_bytes <= MOST_BYTES:
        starts, count = range(0, samples, max(1, MOST_BYTES // sample_bytes)), samples
    else:
        count = max(1, MOST_BYTES // _BLOCKS // sample_bytes)
        starts = np.unique(np.linspace(0, samples - count, _BLOCKS).astype(int)).tolist()
    for start in starts:
        yield _bytes(leaf[start : start + count])


def _bytes(part: Any) -> bytes:
    array = np.asarray(part)
    if array.dtype.kind in "OSU":
        return b"".join(b"%d:%b" % (len(text), text) for text in map(_text, array.reshape(-1).tolist()))
    return array.tobytes()


def _text(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")
