"""The form of the content of a backup: nothing else is restored into a model.

A right checksum does not prove that `BackupAndRestore` wrote a file: it may have been made on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import random_state
from . import container
from .container import DamagedFileError
from .shard_files import fit_together

_PLAIN = (type(None), bool, int, float, str, bytes, np.ndarray, np.generic)


def check(path: Any, summary: Any, content: Any) -> None:
    """Raises DamagedFileError, with the place, for anything but the summary and the content of a backup."""
    try:
        _match(summary, _SUMMARY, "the summary")
        _match(content, _CONTENT, "the content")
        _match_variables(content)
        for worker in content["workers"]:
            random_state.check(worker["random"])
    except container.WRONG as error:
        raise DamagedFileError(
            f"{path} is damaged: its content is not one of a backup ({type(error).__name__}: {str(error)[:200]!a})."
        ) from error


def _match(value: Any, form: Any, where: str) -> None:
    """Compares a value with its form: a type, or several; a function; the form of the items of a list or of a mapping.

    A mapping is from text. An item whose name ends in "?" may be missing or None. "*" stands for all other items.
    """
    if isinstance(form, dict):
        right = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        _require(right, where)
        for name in form.keys() - {"*"}:
            key = name.removesuffix("?")
            if key == name or value.get(key) is not None:
                _match(value[key], form[name], f"{key} of {where}")
        for key in value.keys() - form.keys() if "*" in form else ():
            _match(value[key], form["*"], f"{key} of {where}")
    elif isinstance(form, list):
        _require(isinstance(value, list), where)
        for item in value:
            _match(item, form[0], f"an item of {where}")
    elif isinstance(form, type | tuple):
        _require(isinstance(value, form), where)
    else:
        _require(form(value), where)


def _require(condition: bool, where: str) -> None:
    if not condition:
        raise TypeError(f"{where} has another form")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_time(value: Any) -> bool:
    return isinstance(value, float | int) and 0 <= value < 2.0**36  # seconds since 1970: until the year 4147


def _describes_variable(value: Any) -> bool:
    path, shape, dtype = value
    return isinstance(path, str) and isinstance(dtype, str) and all(map(_is_count, shape))


def _has_arrays(value: Any) -> bool:
    arrays = _arrays(value)
    several = isinstance(arrays, list) and len(arrays) > 0
    return several and all(isinstance(array, np.ndarray | np.generic) for array in arrays)


_ANY: Callable[[Any], bool] = lambda value: True  # noqa: E731
_SUMMARY = {"epoch": _is_count, "step": _is_count, "total_steps?": _is_count, "time": _is_time, "run?": str}
_IDENTITY = {"settings": {}, "seeds": {}, "versions": {}, "data?": {}, "validation data?": {}}
_CONTENT = {
    "fingerprint": {"variables": {"*": [_describes_variable]}, "data": {}, "identity?": _IDENTITY},
    "calendar": {
        "epoch": _is_count,
        "step": _is_count,
        "in_validation": bool,
        "stop_training": bool,
        "step_logs": {},
        "epoch_logs": {},
        "plan": {},
    },
    "variables": {"*": [_has_arrays]},
    "workers": [{"source": {"*": _PLAIN}, "validation?": {"*": _PLAIN}, "random": _ANY}],
    "callbacks": [{"name": str, "state": _ANY, "purpose?": {"*": str}}],
    "counters": {"steps_before_epoch": _is_count},
}


def _match_variables(content: Mapping[str, Any]) -> None:
    """The arrays are those that the fingerprint describes, and there is a worker."""
    _require(len(content["workers"]) > 0, "the list of workers")
    described = content["fingerprint"]["variables"]
    _require(described.keys() == content["variables"].keys(), "the groups of variables")
    for group, members in content["variables"].items():
        _require(len(members) == len(described[group]), f"the group {group}")
        for saved, (path, shape, dtype) in zip(members, described[group]):
            if isinstance(saved, dict) and "shards" in saved:
                right = fit_together(saved["shards"], shape)
            else:
                right = all(list(array.shape) == list(shape) for array in _arrays(saved))
            right = right and all(
                array.dtype.name == dtype or array.dtype == object for array in _arrays(saved)
            )
            _require(right, f"the variable {path}")


def _arrays(saved: Any) -> list[Any]:
    """The arrays of one variable."""
    if not isinstance(saved, dict):
        return [saved]
    return saved["shards"] if "shards" in saved else saved["copies"]
