"""Checks the form of a backup's content before it is restored: a right checksum does not prove who wrote a file."""

import json
import math
from typing import Any

import numpy as np

from ....state import random_state
from . import container

_PLAIN = (type(None), bool, int, float, str, bytes, np.ndarray, np.generic)


def match(value: Any, form: Any, where: str) -> None:
    """Raise a TypeError unless a value has the form: a type, or several; a function; a list or a mapping of forms.

    The keys of a mapping are text. An item whose name ends in "?" may be missing or None. "*" stands for all other items.
    """
    if isinstance(form, dict):
        _require(isinstance(value, dict) and all(isinstance(key, str) for key in value), where)
        for name in form.keys() - {"*"}:
            key = name.removesuffix("?")
            if key == name or value.get(key) is not None:
                match(value[key], form[name], f"{key} of {where}")
        for key in value.keys() - form.keys() if "*" in form else ():
            match(value[key], form["*"], f"{key} of {where}")
    elif isinstance(form, list):
        _require(isinstance(value, list), where)
        for item in value:
            match(item, form[0], f"an item of {where}")
    elif isinstance(form, type | tuple):
        _require(isinstance(value, form), where)
    else:
        _require(form(value), where)


def _require(condition: bool, where: str) -> None:
    if not condition:
        raise TypeError(f"{where} is malformed")


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number of at least 0 that fits 64 bits."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Return whether a value is a number for which TensorFlow has a type, or an array of one."""
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "bif"


def _describes_variable(value: Any) -> bool:
    path, shape, dtype = value
    return isinstance(path, str) and isinstance(dtype, str) and all(map(is_count, shape))


def _has_arrays(value: Any) -> bool:
    arrays = _arrays(value)
    several = isinstance(arrays, list) and len(arrays) > 0
    return several and all(isinstance(array, np.ndarray | np.generic) for array in arrays)


def _is_words(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1


RANDOM = {
    "python": random_state.is_state_of_python,
    "numpy": lambda state: np.random.RandomState().set_state(state) is None,  # it raises for another form
    "keras?": _is_words,
    "tensorflow_seeds?": random_state.is_state_of_python,
    "tensorflow?": {"state": _is_words, "algorithm": is_count},
    "held?": {"*": lambda text: isinstance(json.loads(text), dict | list)},
}
_SUMMARY = {
    "epoch": is_count,
    "step": is_count,
    "total_steps?": is_count,
    "time": lambda value: isinstance(value, float | int) and 0 <= value < 2.0**36,  # seconds: to year 4147
    "run?": str,
    "kept?": [str],
}
_LOGS = {"*": lambda value: not isinstance(value, type(None) | str | bytes)}
_IDENTITY = {
    "declared?": str,
    "settings": {},
    "seeds": {},
    "versions": {},
    "data?": {},
    "validation data?": {},
}
_CONTENT = {
    "fingerprint": {"variables": {"*": [_describes_variable]}, "data": {}, "identity": _IDENTITY},
    "calendar": {
        "epoch": is_count,
        "step": is_count,
        "in_validation": bool,
        "stop_training": bool,
        "step_logs": _LOGS,
        "epoch_logs": _LOGS,
    },
    "variables": {"*": [_has_arrays]},
    "workers": [{"source": {"*": _PLAIN}, "validation?": {"*": _PLAIN}, "random": RANDOM}],
    "callbacks": [{"name": str, "state": object, "purpose": {"*": str}}],
    "counters": {"steps_before_epoch": is_count},
}


def check(path: Any, summary: Any, content: Any) -> None:
    """Raise DamagedFileError, with the place, for anything but the summary and the content of a backup.

    Raise a BackupMismatchError for a backup that names no run, as those of version 0.2.
    """
    with container.report_damage(f"{path} is damaged: its content is not one of a backup"):
        match(summary, _SUMMARY, "the summary")
        match(content, _CONTENT, "the content")
        _require(len(content["workers"]) > 0, "the list of workers")
        described = content["fingerprint"]["variables"]
        _require(described.keys() == content["variables"].keys(), "the groups of variables")
        for group, members in content["variables"].items():
            _require(len(members) == len(described[group]), f"the group {group}")
            for saved, (variable, shape, dtype) in zip(members, described[group]):
                arrays = _arrays(saved)
                if isinstance(saved, dict) and "shards" in saved:
                    shape = [-(-math.prod(shape) // len(arrays))]
                right = all(list(array.shape) == list(shape) for array in arrays)
                right = right and all(array.dtype.name == dtype or array.dtype == object for array in arrays)
                _require(right, f"the variable {variable}")
        # The position in the data is that of the calendar, and no source has begun more passes than there were epochs.
        epoch, step = content["calendar"]["epoch"], content["calendar"]["step"]
        for worker in content["workers"]:
            source, validation = worker["source"], worker.get("validation") or {}
            _require(not step or source.get("step", step) == step, "the step in the data")
            _require(source.get("epoch", epoch) in (epoch, epoch - (not step)), "the epoch in the data")
            _require(all(each.get("passes", 0) <= epoch + 1 for each in (source, validation)), "the passes")
    if summary.get("run") is None:
        raise container.BackupMismatchError(
            f"{path} names no run, so version 0.2 of Unisono wrote it, whose backups are no longer read: finish that run "
            "with version 0.2, or move the file away."
        )


def _arrays(saved: Any) -> list[Any]:
    if not isinstance(saved, dict):
        return [saved]
    return saved["shards"] if "shards" in saved else saved["copies"]
