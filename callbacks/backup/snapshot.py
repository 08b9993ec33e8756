"""The whole state of a `fit` between two steps as one tree, and the reverse."""

import hashlib
import io
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ...compat.keras_private.layers import random_states_of
from ...compat.keras_private.variables import raw_value
from ...distribute.workers.agreement import gather_bytes, gather_json, place_among_workers, spans_workers
from ...state import random_state, variable_state
from ...state.identity.table import differences, fingerprint
from ...state.trained_model import FitState, TrainedModel
from ..callback import find_named_generators
from . import callback_state
from .files import container
from .files.container import BackupMismatchError
from .files.shard_files import find_local_shards

_LARGE, _SAME_AS = "iterator", "same_iterator_as"  # what may be large in a source's position


class StateHolders(NamedTuple):
    """Whose states a save takes: the groups of `variables_of`, and NumPy's and Python's generators by name."""

    variables: dict[str, list[Any]]
    generators: dict[str, Any]


def find_state_holders(model: TrainedModel, fit_state: FitState) -> StateHolders:
    """Find what a backup is to hold; each look goes through all that the user's objects reach."""
    groups = variable_state.variables_of(model, not fit_state.custom_loop)
    return StateHolders(groups, find_held_generators(model, fit_state))


def capture(
    model: TrainedModel,
    fit_state: FitState,
    holders: StateHolders,
    epoch: int,
    step: int,
    buffers: dict[Any, np.ndarray],
    who: dict[str, Any],
    before_validation: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `(content, summary)` for `BackupStore.write`, copied to the host, so that training may go on.

    The content has all variables, the random generators, the position in the data and in `fit`, the choices of the loop,
    the state of the callbacks, and a fingerprint of the program and its data.

    A resumed run continues at `epoch`, 0-based, of which `step` steps are done. No write from `buffers` may be in progress.
    `who` is the `fingerprint.identity`. With `before_validation` (of `validation_start`), a resumed run repeats the
    validation alone. Context: host, between steps; on every worker at the same step.
    """
    strategy = model.distribute_strategy
    variables = {
        group: [
            variable_state.capture(
                variable,
                strategy,
                lambda copy, array, key=(group, i): variable_state.copy_into_buffer(
                    buffers, (*key, copy), array
                ),
                equal=group == "optimizer" or bool(getattr(variable, "trainable", False)),
            )
            for i, variable in enumerate(members)
        ]
        for group, members in holders.variables.items()
    }
    source = fit_state.source.state()
    start = before_validation or _find_random_state(holders.generators, fit_state)
    worker = {"random": start["random"], "source": source, "validation": start["validation"]}
    if before_validation is not None:
        for i, seed in before_validation["seeds"].items():
            variables["model"][i] = seed
    variables, parts = _from_all_workers(strategy, variables, worker)
    content = {
        "fingerprint": fingerprint(holders.variables, fit_state, source, who),
        "calendar": {
            "epoch": epoch,
            "step": step,
            "in_validation": before_validation is not None,
            "step_logs": dict(fit_state.step_logs) if step else {},
            "epoch_logs": dict(fit_state.epoch_logs) if before_validation is not None else {},
            "stop_training": bool(getattr(model, "stop_training", False)),
        },
        "variables": variables,
        "workers": parts,
        "callbacks": callback_state.capture(fit_state.callbacks),
    }
    # With accumulation the iterations are a tensor.
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    total = None if iterations is None else int(tf.convert_to_tensor(raw_value(iterations)).numpy())
    return content, {"epoch": epoch, "step": step, "total_steps": total}


def validation_start(model: TrainedModel, fit_state: FitState) -> dict[str, Any]:
    """Return the state that a validation can change, and with which a repeated one must begin."""
    drawn = {id(variable) for variable in random_states_of(model)}
    seeds = {
        i: variable_state.capture(variable, model.distribute_strategy, lambda _, array: np.array(array))
        for i, variable in enumerate(model.variables)
        if id(variable) in drawn
    }
    return {"seeds": seeds, **_find_random_state(find_held_generators(model, fit_state), fit_state)}


def _find_random_state(generators: dict[str, Any], fit_state: FitState) -> dict[str, Any]:
    """Return the generators, and the position in the validation data before the next validation, a new pass."""
    drawn, source = random_state.capture(generators), fit_state.validation
    if source is None:
        return {"random": drawn, "validation": {}}
    state = {name: value for name, value in source.state().items() if name != _LARGE}
    if state.get("taken") and source.rewinds:
        state.update(passes=state["passes"] + 1, taken=0, step=0, ended=0)
    return {"random": drawn, "validation": state}


def find_held_generators(model: TrainedModel, fit_state: FitState) -> dict[str, Any]:
    """Return the generators of NumPy and Python that are named, or that layers, the loss and callbacks lead to."""
    callbacks = callback_state.name_callbacks(fit_state.callbacks)
    held = random_state.find_generators({**variable_state.find_held(model), **callbacks})
    return {**held, **find_named_generators(fit_state.callbacks)}


def check(
    content: dict[str, Any], model: TrainedModel, fit_state: FitState, who: dict[str, Any], path: Any
) -> None:
    """Raise BackupMismatchError for a backup of something else, on all workers, with a list of the differences."""
    # Only sources that resume by index can be asked for their state before it is restored: an iterator has one use.
    by_index = getattr(type(fit_state.source), "resume_by", None) == "index"
    variables = variable_state.variables_of(model, not fit_state.custom_loop)
    now_is = fingerprint(variables, fit_state, fit_state.source.state() if by_index else {}, who)
    found = differences(content["fingerprint"], now_is)
    workers, now = len(content["workers"]), place_among_workers(model.distribute_strategy)[1]
    if getattr(fit_state.source, "per_worker", False) and workers != now:
        found.append(f"workers with separate inputs: {workers} in the backup, {now} now")
    found = next(filter(None, gather_json(found, model.distribute_strategy)), None)
    if found:
        listed = "".join(f"\n  - {item}" for item in found)
        raise BackupMismatchError(
            f"{path} belongs to another training run and cannot be resumed. It differs in:{listed}\n"
            "Use a separate directory for this run, or remove the backups in this one."
        )


def restore_values(content: dict[str, Any], model: TrainedModel, fit_state: FitState) -> list[str]:
    """Restore variables, callbacks and random generators; can be repeated. Return sentences about states without a place."""
    strategy = model.distribute_strategy
    place = place_among_workers(strategy)
    inputs = [source for source in (fit_state.source, fit_state.validation) if source is not None]
    owned = [each for source in inputs for each in getattr(source, "own_state", ())]
    kept = {id(raw_value(each)) for each in owned}
    for group, members in variable_state.variables_of(model, not fit_state.custom_loop).items():
        for variable, saved in zip(members, content["variables"][group], strict=True):
            if id(raw_value(variable)) not in kept:
                variable_state.restore(variable, saved, place)
    callbacks = callback_state.restore(fit_state.callbacks, content["callbacks"])
    held = find_held_generators(model, fit_state)
    generators = random_state.restore(_own_part(content, strategy)["random"], held, owned)
    left_over = {"callback": callbacks, "random generator": generators}
    return [f"no {kind} for the state of {', '.join(names)}" for kind, names in left_over.items() if names]


def restore_position(content: dict[str, Any], model: TrainedModel, fit_state: FitState) -> None:
    """Set the position in `fit` and in the data."""
    calendar = content["calendar"]
    fit_state.epoch, fit_state.step = calendar["epoch"], calendar["step"]
    fit_state.step_logs = dict(calendar["step_logs"])
    fit_state.epoch_logs = dict(calendar["epoch_logs"])
    part = _own_part(content, model.distribute_strategy)
    fit_state.source.restore(part["source"])
    validation = part.get("validation") or {}
    if fit_state.validation is not None and (validation.get("passes") or validation.get("calls")):
        fit_state.validation.restore(validation)


def _own_part(content: dict[str, Any], strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """Return what this worker saved; the chief's part where there were more or fewer workers."""
    parts = content["workers"]
    me, workers = place_among_workers(strategy)
    part = parts[me if len(parts) == workers else 0]
    source = dict(part["source"])
    if (same_as := source.pop(_SAME_AS, None)) is not None:
        source[_LARGE] = parts[same_as]["source"][_LARGE]
    return {**part, "source": source}


def _from_all_workers(
    strategy: tf.distribute.Strategy, variables: dict[str, Any], worker: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Add, on the chief, the copies on other workers and what each worker alone knows."""
    if not spans_workers(strategy):
        return variables, [worker]
    large = worker["source"].get(_LARGE, b"")
    source = {name: value for name, value in worker["source"].items() if name != _LARGE}
    local = find_local_shards(variables, "copies")
    stream = io.BytesIO()
    container.write(stream, {"copies": local, "worker": {**worker, "source": source}}, {})
    payloads = gather_bytes(stream.getvalue(), strategy, only_chief=True)
    positions = _positions(large, strategy)
    if place_among_workers(strategy)[0] != 0:
        return variables, [worker]
    parts = [container.parse(data)[1] for data in payloads]
    for group, members in local.items():
        for i in members:
            variables[group][i] = {"copies": [copy for part in parts for copy in part["copies"][group][i]]}
    for part, position in zip(parts, positions):
        part["worker"]["source"].update(position)
    return variables, [part["worker"] for part in parts]


def _positions(large: bytes, strategy: tf.distribute.Strategy) -> list[dict[str, Any]]:
    """Return the checkpoints of the workers' iterators to the chief; a number stands for a copy of an earlier one."""
    me = place_among_workers(strategy)[0]
    sums = gather_json(hashlib.blake2b(large).hexdigest() if large else None, strategy)
    first = [sums.index(checksum) for checksum in sums]
    sent = gather_bytes(large if first[me] == me != 0 else b"", strategy, only_chief=True)
    sent[0] = large
    return [
        {} if sums[i] is None else {_LARGE: sent[i]} if first[i] == i else {_SAME_AS: first[i]}
        for i in range(len(sums))
    ]
