"""A nest of values and arrays as JSON with a list of arrays, and the reverse. `container.py` describes the form."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def count(value: Any) -> int:
    """Return `value` if it is an integer of at least 0; otherwise raise a TypeError."""
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r:.40} is not a count")
    return value


def encode(value: Any, arrays: list[np.ndarray], where: str) -> Any:
    """Return `value` as JSON, appending its arrays to `arrays`. A TypeError names the place `where` of a wrong value."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Mapping):
        items = {key: encode(item, arrays, f"{where}.{key}") for key, item in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in items):
            return items
        return {"$dict": [[encode(key, arrays, f"{where} key"), item] for key, item in items.items()]}
    if isinstance(value, list | tuple):
        items = [encode(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, bytes | bytearray):
        return {"$bytes": _add(np.frombuffer(bytes(value), np.uint8), arrays)}
    if not hasattr(value, "__array__"):
        raise TypeError(
            f"{where.lstrip('.') or 'The state'} is a {type(value).__name__} ({value!r:.80}); a state may contain None, "
            "bool, int, float, str, bytes, list, tuple, dict and NumPy arrays."
        )
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        items = [encode(item, arrays, where) for item in array.reshape(-1).tolist()]
        return {"$objects": {"shape": list(array.shape), "items": items}}
    if array.dtype.names:
        raise TypeError(f"{where.lstrip('.')} is a structured array ({array.dtype}); save its fields.")
    return {"$scalar" if isinstance(value, np.generic) else "$array": _add(array, arrays)}


def _add(array: np.ndarray, arrays: list[np.ndarray]) -> int:
    if array.dtype.isbuiltin == 1 or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    arrays.append(np.asarray(array, order="C"))
    return len(arrays) - 1


def decode(value: Any, take: Callable[..., Any]) -> Any:
    """Reverse `encode`, or raise an error of any kind; `take(number)` is an array, `take(number, raw=True)` its bytes."""
    if isinstance(value, list):
        return [decode(item, take) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, item), *_ = value.items()
        if key in _DECODERS:
            return _DECODERS[key](item, take)
    return {key: decode(item, take) for key, item in value.items()}


def _decode_objects(value: dict[str, Any], take: Callable[..., Any]) -> np.ndarray:
    result = np.empty(len(value["items"]), object)
    result[:] = decode(value["items"], take)
    return result.reshape([count(size) for size in value["shape"]])


_DECODERS = {
    "$array": lambda number, take: take(number),
    "$scalar": lambda number, take: take(number)[()],
    "$bytes": lambda number, take: take(number, raw=True),
    "$float": lambda text, take: float(text),
    "$tuple": lambda items, take: tuple(decode(item, take) for item in items),
    "$dict": lambda pairs, take: {decode(k, take): decode(v, take) for k, v in pairs},
    "$objects": _decode_objects,
}
