"""What the content of a backup must be, so that nothing else is put into a model.

A right checksum does not say that a file was written by `BackupAndRestore`: it may have been made by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import container, random_state
from .container import DamagedFileError
from .shard_files import fit_together

_LATEST = 2.0**36  # seconds since 1970: in the year 4147


def check(path: Any, summary: Any, content: Any) -> None:
    """Refuses what is not the summary and the content of a backup with a DamagedFileError that says where."""
    try:
        _summary(summary)
        for part, is_right in _PARTS.items():
            if part not in content:
                raise TypeError(f"{part} is missing")
            is_right(content[part], part)
        _same_variables(content)
    except container.WRONG as error:
        raise DamagedFileError(
            f"{path} is damaged: its content is not one of a backup ({type(error).__name__}: {str(error)[:200]!a})."
        ) from error


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise TypeError(what)


def _count(value: Any, name: str) -> None:
    _require(type(value) is int and 0 <= value < 2**63, f"{name} is no count")


def _text_keys(value: Any, name: str) -> None:
    _require(isinstance(value, dict) and all(isinstance(key, str) for key in value), f"{name} is no dict")


def _summary(summary: Any) -> None:
    for name in ("epoch", "step"):
        _count(summary[name], name)
    if summary["total_steps"] is not None:
        _count(summary["total_steps"], "total_steps")
    when = summary["time"]
    _require(isinstance(when, float | int) and 0 <= when < _LATEST, "time is no time")


def _fingerprint(value: Any, name: str) -> None:
    _text_keys(value, name)
    _text_keys(value["variables"], "variables of the fingerprint")
    _text_keys(value["data"], "data of the fingerprint")
    for members in value["variables"].values():
        for path, shape, dtype in members:
            _require(isinstance(path, str) and isinstance(dtype, str), "a variable has no name")
            for size in shape:
                _count(size, "a dimension")
    if "identity" in value:
        _identity(value["identity"], "identity")


def _identity(value: Any, name: str) -> None:
    _text_keys(value, name)
    for part in ("settings", "seeds", "versions"):
        _text_keys(value[part], f"{part} of the identity")
    for part in ("data", "validation data"):
        if value[part] is not None:
            _text_keys(value[part], f"{part} of the identity")


def _calendar(value: Any, name: str) -> None:
    _text_keys(value, name)
    for part in ("epoch", "step"):
        _count(value[part], part)
    for part in ("in_validation", "stop_training"):
        _require(isinstance(value[part], bool), f"{part} is no bool")
    for part in ("step_logs", "epoch_logs", "plan"):
        _text_keys(value[part], part)


def _variables(value: Any, name: str) -> None:
    _text_keys(value, name)
    for members in value.values():
        _require(isinstance(members, list), "a group of variables is no list")
        for saved in members:
            copies = _arrays(saved)
            _require(isinstance(copies, list) and len(copies) > 0, "a variable has no copy")
            for array in copies:
                _require(isinstance(array, np.ndarray | np.generic), "a variable is no array")


def _same_variables(content: Mapping[str, Any]) -> None:
    """The arrays are those that the fingerprint describes."""
    described = content["fingerprint"]["variables"]
    _require(described.keys() == content["variables"].keys(), "the groups of variables differ")
    for group, members in content["variables"].items():
        _require(len(members) == len(described[group]), f"{group} has another number of variables")
        for saved, (path, shape, dtype) in zip(members, described[group]):
            if isinstance(saved, dict) and "shards" in saved:
                right = fit_together(saved["shards"], shape)
            else:
                right = all(list(array.shape) == list(shape) for array in _arrays(saved))
            right = right and all(
                array.dtype.name == dtype or array.dtype == object for array in _arrays(saved)
            )
            _require(right, f"{path} has another shape or dtype")


def _arrays(saved: Any) -> list[Any]:
    """The arrays of one variable."""
    if not isinstance(saved, dict):
        return [saved]
    return saved["shards"] if "shards" in saved else saved["copies"]


def _workers(value: Any, name: str) -> None:
    _require(isinstance(value, list) and len(value) > 0, "there is no worker")
    for worker in value:
        plain = (bool, int, float, str, bytes, np.ndarray, np.generic)
        for position in (worker["source"], worker.get("validation", {})):
            _text_keys(position, "the position in the data")
            for part in position.values():
                _require(
                    part is None or isinstance(part, plain), "the position in the data is no plain value"
                )
        random_state.check(worker["random"])


def _callbacks(value: Any, name: str) -> None:
    _require(isinstance(value, list), "the callbacks are no list")
    for entry in value:
        _require(isinstance(entry["name"], str) and "state" in entry, "a callback has no name")
        purpose = entry.get("purpose") or {}
        _text_keys(purpose, "the purpose of a callback")
        _require(
            all(isinstance(part, str) for part in purpose.values()), "the purpose of a callback is no text"
        )


def _counters(value: Any, name: str) -> None:
    _count(value["steps_before_epoch"], "steps_before_epoch")


_PARTS: dict[str, Callable[[Any, str], None]] = {
    "fingerprint": _fingerprint,
    "calendar": _calendar,
    "variables": _variables,
    "workers": _workers,
    "callbacks": _callbacks,
    "counters": _counters,
}
