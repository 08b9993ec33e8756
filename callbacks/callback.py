"""What a callback of Unisono is, and how the loops ask any callback; only here names are looked for."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import keras


class Callback(keras.callbacks.Callback):
    """Keras' base class of callbacks, with the settings and hooks that Unisono's loops know in addition to Keras'.

    The first three attributes and all hooks but `pending_upload` also work in a class that derives from Keras' own base.
    Plain Keras calls the hooks of Keras alone.

    Attributes:
        only_reads_logs: bool, on the class; the per-batch hooks only read logs. They are called for each step of a compiled
            call, in order, at its end: the weights are those after the last step.
        waits_for_compiled_calls: bool; the per-batch hooks are called once at the end of each compiled call.
        runs_last: bool; the callback is called after all others.
        output_paths: dict, on the class; the attributes that hold a path, and whether that is a folder. Each path is checked
            before the first step. If it is in a store, the attribute is a local path during `fit`, which is uploaded.
        writes_itself: bool; the callback decides on which worker it writes, and uploads what it writes to a store.
        generators: random generators that a backup holds, and that nothing else leads to.

    Examples:
        >>> class EveryHundredSteps(unisono.callbacks.Callback):
        ...     def steps_until_call(self, step):
        ...         return 100 - step % 100
        ...
        ...     def on_train_batch_end(self, batch, logs=None):
        ...         if (batch + 1) % 100 == 0:
        ...             print(f"step {batch + 1}: loss {logs['loss']:.3f}")
    """

    only_reads_logs: ClassVar[bool] = False
    waits_for_compiled_calls: bool = False
    runs_last: bool = False
    output_paths: ClassVar[Mapping[str, bool]] = {}
    writes_itself: bool = False
    generators: Sequence[Any] = ()

    def steps_until_call(self, step: int) -> int | None:
        """Return in how many steps the per-batch hooks must be called; None: not before the end of the epoch.

        `step` steps of the epoch are done. Without this hook a callback is called at every batch, if it has a hook for that.
        """

    def on_train_steps_end(self, first: int, logs: dict[str, Any]) -> None:
        """Take the logs of a compiled call when it has ended.

        `first` is its first step, counted from 0 in the epoch. `logs` has for each log the value after each step: an array
        `(steps,)`, float64, or `(steps, ...)` for a log that is no scalar.
        """

    def on_fit_exit(self) -> None:
        """Release what the callback holds when `fit` ends, even with an error."""

    def get_state(self) -> Any:
        """Return the state for backups: numbers, strings, arrays, and lists and dicts of these. None: there is none."""

    def set_state(self, state: Any) -> None:
        """Restore what `get_state` returned.

        Context: after `on_train_begin`; within an epoch again after `on_epoch_begin`.
        """

    def pending_upload(self) -> Future[Any] | None:
        """Return the upload that runs now, or None. A backup that refers to its files is uploaded after them."""


def setting(callback: Any, name: str) -> Any:
    """Return an attribute of a callback, or of its class, under its name in `Callback`; the default where it has none."""
    return getattr(callback, name, getattr(Callback, name))


def hook(callback: Any, name: str) -> Any:
    """Return the method of a callback, of whatever class, under its name in `Callback`; None where nobody defined it."""
    found = getattr(callback, name, None)
    return None if getattr(found, "__func__", found) is getattr(Callback, name) else found


def ours(callbacks: Iterable[Any]) -> list[Callback]:
    """Return the callbacks that derive from `Callback`."""
    return [each for each in callbacks if isinstance(each, Callback)]


def find_named_generators(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return the generators that callbacks name, such as `BackupAndRestore(generators=)`, by name."""
    named = [each for callback in ours(callbacks) for each in callback.generators]
    return {f"generators[{i}]": each for i, each in enumerate(named)}
