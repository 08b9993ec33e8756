"""Whether a backup belongs to this model, optimizer and data, and what differs if it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ..fit_state import FitState
from ..trained_model import CompiledModel
from . import variable_state

_MOST_LISTED = 12
# Names that Keras numbers within a process, and values that training changes: not part of the identity of a run.
_IGNORED_SETTINGS = ("name", "module", "registered_name", "build_config", "shared_object_id")


def fingerprint(model: CompiledModel, fit_state: FitState, source_state: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for a backup to fit: variables, optimizer, data. JSON values."""
    optimizer = getattr(model, "optimizer", None)
    return {
        "variables": variable_state.describe(variable_state.variables_of(model)),
        "optimizer": None if optimizer is None else _optimizer(optimizer),
        "data": _data(fit_state, source_state),
    }


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for each thing that differs between two fingerprints; empty when the backup fits."""

    def of_variables(*groups: str) -> list[str]:
        pairs = ((group, saved["variables"][group], now["variables"][group]) for group in groups)
        return [
            item for group, old, new in pairs for item in _variable_differences(f"{group} variable", old, new)
        ]

    found = of_variables("model", "other") + _setting_differences(saved["optimizer"], now["optimizer"])
    found = found or of_variables("optimizer", "metrics")
    for name, value in saved["data"].items():
        other = now["data"].get(name)
        if value != other and value is not None and other is not None:
            found.append(f"data {name}: {value} in the backup, {other} now")
    if len(found) > _MOST_LISTED:
        found = found[:_MOST_LISTED] + [f"and {len(found) - _MOST_LISTED} more"]
    return found


def _optimizer(optimizer: Any) -> dict[str, Any]:
    try:
        settings = _plain(optimizer.get_config())
    except NotImplementedError:
        settings = {}
    return {"class": type(optimizer).__name__, **settings}


def _plain(value: Any) -> Any:
    """Settings as JSON values; a number for the learning rate is state, and left out."""
    if isinstance(value, Mapping):
        return {
            str(k): _plain(v)
            for k, v in value.items()
            if k not in _IGNORED_SETTINGS and not (k == "learning_rate" and isinstance(v, float | int))
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)


def _data(fit_state: FitState, source_state: Mapping[str, Any]) -> dict[str, Any]:
    source = fit_state.source
    spec = getattr(source, "spec", None)
    rows = source_state.get("rows")
    return {
        "rows": None if rows is None else int(rows),
        "batch_rows": getattr(source, "batch_rows", None),
        "steps_per_epoch": fit_state.steps_per_epoch,
        "layout": None if spec is None else [_layout(part) for part in tf.nest.flatten(spec)],
    }


def _layout(spec: Any) -> str:
    if isinstance(spec, tf.TensorSpec):
        return f"{spec.dtype.name}{spec.shape[1:] if spec.shape.rank else spec.shape}"
    return type(spec).__name__


def _variable_differences(kind: str, saved: list[list[Any]], now: list[list[Any]]) -> list[str]:
    old, new = ([(_plain_path(path), shape, dtype) for path, shape, dtype in group] for group in (saved, now))
    if len(old) == len(new):
        return [f"{kind} {_change(a, b)}" for a, b in zip(old, new) if a != b]
    only_old = [entry for entry in old if entry not in new]
    only_new = [entry for entry in new if entry not in old]
    return (
        [f"{len(old)} {kind}s in the backup, {len(new)} now"]
        + [f"{kind} {_shown(entry)} only in the backup" for entry in only_old]
        + [f"{kind} {_shown(entry)} only now" for entry in only_new]
    )


def _setting_differences(saved: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    saved, now = saved or {"class": None}, now or {"class": None}
    if saved["class"] != now["class"]:
        return [f"optimizer: {saved['class']} in the backup, {now['class']} now"]
    return [
        f"optimizer {name}: {saved.get(name)} in the backup, {now.get(name)} now"
        for name in {**saved, **now}
        if saved.get(name) != now.get(name)
    ]


def _plain_path(path: str) -> str:
    """A path without the numbers that Keras appends when a process makes several models: `dense_3/kernel`."""
    return "/".join(re.sub(r"_\d+$", "", part) for part in path.split("/"))


def _change(old: tuple[str, list[int], str], new: tuple[str, list[int], str]) -> str:
    if old[0] == new[0]:
        return f"{old[0]}: {old[2]}{old[1]} in the backup, {new[2]}{new[1]} now"
    return f"{_shown(old)} in the backup, {_shown(new)} now"


def _shown(entry: tuple[str, list[int], str]) -> str:
    path, shape, dtype = entry
    return f"{path} {dtype}{shape}"
