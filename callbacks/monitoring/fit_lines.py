"""The first and the last line of a `fit`: what it runs on, and what came out of it."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import keras

from ...compat.tensorflow_private.strategies import devices_of
from ...distribute.attention.choice import BLOCKS, Choice
from ...distribute.hardware.program_cache import LATE, PROGRAM_CACHE, Counts
from ...distribute.mesh import mesh_of
from ...distribute.workers.cluster import num_workers
from ...state.trained_model import FitState, TrainedModel, batch_norms_of
from ..backup.backup_and_restore import BackupAndRestore
from ..report.facts import strategy_name
from .formatting import duration, scalar, short_number

WIDTH = 79  # of a terminal with 80 columns


class FitLines:
    """What the two lines of a running `fit` say. Context: the chief, when the first epoch begins."""

    def __init__(self, model: Any, state: FitState, now: float) -> None:
        self._model, self._state = model, state
        self._began, self._first_epoch, self._backend = now, state.epoch, _backend(model, state)
        self._steps, self._seconds, self._programs = 0, 0.0, PROGRAM_CACHE.counts
        self._apart, self._said = _batch_norms(model), set[str]()

    def first(self) -> str:
        """Return strategy, devices, trained and all parameters, global batch, precision, backend, and backups."""
        model, state = self._model, self._state
        counts = [sum(math.prod(w.shape) for w in each) for each in (model.trainable_weights, model.weights)]
        size = f"{' of '.join(dict.fromkeys(map(short_number, counts)))} parameters"
        parts = [f"Training on {_place(model, state)}", size, _batch(model, state), model.dtype_policy.name]
        parts += [self._backend, *_backups(state), *self.take_late()]
        return _wrap_parts([part for part in parts if part])

    def take_late(self) -> list[str]:
        """Return, each once, what the first step shows when it is traced.

        It is how attention is computed, and which normalization is unlike that of one device.
        """
        function = self._state.function
        parts = _attention(getattr(function, "attention", ()))
        if not self._model._runner.partitions or getattr(function, "partitioned", False):
            parts += self._apart  # a step that is not divided normalizes like one device
        late = [part for part in parts if part not in self._said]
        self._said.update(late)
        return late

    def count(self, steps: int, seconds: float) -> None:
        """Add steps of an epoch to the speed."""
        self._steps, self._seconds = self._steps + steps, self._seconds + seconds

    def last(self, now: float) -> str:
        """Return epochs, what ended them early, time, speed, and the best monitored value; the backend if it has changed."""
        state, backend = self._state, _backend(self._model, self._state)
        done, wanted = state.epoch - self._first_epoch, state.epochs - self._first_epoch
        epochs = f"{wanted} epoch{'s' * (wanted != 1)}"
        parts = [f"{epochs if done == wanted else f'{done} of {epochs}'} in {duration(now - self._began)}"]
        if self._seconds and state.samples_per_step:
            parts += speeds(state, self._steps / self._seconds)
        stopping = [type(each).__name__ for each in state.callbacks if getattr(each, "stopped_epoch", 0)]
        parts += [f"ended by {name}" for name in stopping[:1]] * (done < wanted) + _best(state.callbacks)
        parts += [f"in the {backend}"] * (backend != self._backend)
        return _wrap_parts(parts + _cached_programs(self._programs))


def speeds(state: FitState, steps: float) -> list[str]:
    """Return the samples, and of text the tokens, that this many steps a second are; empty if their size is not known."""
    if not (samples := steps * (state.samples_per_step or 0)):
        return []
    tokens = samples * (state.tokens_per_sample or 0)
    return [f"{short_number(samples)} samples/s"] + [f"{short_number(tokens)} tokens/s"] * (tokens > 0)


def _attention(choices: Collection[Choice]) -> list[str]:
    """Return how attention is computed: in blocks, or on a GPU why not."""
    if any(each.body == BLOCKS for each in choices):
        return ["attention in blocks"]
    return [f"plain attention ({each.reason})" for each in sorted(choices)[:1]]


def _cached_programs(before: Counts) -> list[str]:
    """Return whether an earlier process had compiled every program since `before`, or why no process keeps them."""
    if PROGRAM_CACHE.counts.calls == before.calls:
        return []
    if PROGRAM_CACHE.why_off:
        return [f"programs are not kept: {LATE}"] * (PROGRAM_CACHE.why_off == LATE)
    return ["compiled before"] * PROGRAM_CACHE.all_loaded_since(before)


def _wrap_parts(parts: Sequence[str]) -> str:
    """Return the parts in as few lines as they need."""
    lines = [""]
    for part in parts:
        line = f"{lines[-1]}, {part}" if lines[-1] else part
        lines = [*lines[:-1], line] if len(line) < WIDTH else [*lines, f"  {part}"]
    return ",\n".join(filter(None, lines))


def _place(model: TrainedModel, state: FitState) -> str:
    if model._runner.place is not None:
        return model._runner.place
    strategy = model.distribute_strategy
    devices = [str(name).rpartition("device:")[2] for name in devices_of(strategy)]
    replicas, name, mesh = strategy.num_replicas_in_sync, strategy_name(strategy), mesh_of(strategy)
    count = f"mesh {mesh}" if mesh.divides_weights else f"{replicas} replicas"
    if num_workers() > 1:
        several = f", {count}" if replicas > 1 else ""
        return f"{num_workers()} workers ({name}{several})"
    if replicas == 1:
        own = state.function.device() if hasattr(state.function, "device") else ""
        return own.rpartition("device:")[2] or "one device"
    kinds = {name.partition(":")[0] for name in devices}
    where = f"{len(devices)} {kinds.pop()}s" if len(kinds) == 1 else ", ".join(devices)
    return f"{where} ({name}, {count})"


def _batch(model: TrainedModel, state: FitState) -> str:
    """Return the global batch and its parts on the replicas; empty if its size is not known."""
    size, replicas = state.samples_per_step, mesh_of(model.distribute_strategy).shape[0]
    if not size:
        return ""
    return f"batch {size}" + (f" = {split_evenly(size, replicas)}" if replicas > 1 else "")


def split_evenly(size: int, parts: int) -> str:
    """Return the sizes of parts that differ by at most one.

    >>> split_evenly(64, 4), split_evenly(50, 4), split_evenly(3, 4)
    ('4 x 16', '2 x 13 + 2 x 12', '3 x 1 + 1 x 0')
    """
    least, more = divmod(size, parts)
    rest = f"{parts - more} x {least}"
    return f"{more} x {least + 1} + {rest}" if more else rest


def _backend(model: TrainedModel, state: FitState) -> str:
    backend = getattr(state.function, "backend", None)
    if model.run_eagerly or backend is None:
        return "eager steps" if model.run_eagerly else ""
    return f"{'XLA' if backend == 'xla' else backend} ({state.function.reason})"


def _backups(state: FitState) -> list[str]:
    kinds = BackupAndRestore | keras.callbacks.BackupAndRestore
    found = next((each for each in state.callbacks if isinstance(each, kinds)), None)
    folder = getattr(found, "directory", None) or getattr(found, "backup_dir", None)
    if found is None:
        return []
    resumed = (state.epoch, state.step) > (state.first_epoch, 0)
    where = [f"resumed at epoch {state.epoch + 1}, step {state.step}"] if resumed else []
    return [f"backups in {folder}", *where]


def _batch_norms(model: TrainedModel) -> list[str]:
    """Return how many layers normalize with a part of the batch, unlike one device, and what changes that."""
    apart = [each for each in batch_norms_of(model) if each.trainable and not each.synchronized]
    if model._runner.parts(model) == 1 or not apart:
        return []
    verb = "layer normalizes" if len(apart) == 1 else "layers normalize"
    what, *advice = model._runner.normalizes
    return [f"{len(apart)} BatchNormalization {verb} {what}", *advice]


def _best(callbacks: Sequence[Any]) -> list[str]:
    """Return the best value, and its epoch, of what a callback monitors; else of `val_loss`, else of `loss`."""
    history = next((each for each in callbacks if isinstance(each, keras.callbacks.History)), None)
    if history is None:
        return []
    monitoring = [each for each in callbacks if getattr(each, "monitor_op", None) is not None]
    choices = [(each.monitor, bool(each.monitor_op(1.0, 0.0))) for each in monitoring]
    for name, upwards in [*choices, ("val_loss", False), ("loss", False)]:
        values = [scalar(value) for value in history.history.get(name, ())]
        values = [math.nan if value is None else value for value in values]
        if any(map(math.isfinite, values)):
            best = (max if upwards else min)(filter(math.isfinite, values))
            # A log that only some epochs have, as that of a validation, is not counted by epoch.
            known = len(values) == len(history.epoch)
            epoch = f" in epoch {history.epoch[values.index(best)] + 1}" if known else ""
            return [f"best {name} {best:.4g}{epoch}"]
    return []
