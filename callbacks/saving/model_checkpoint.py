"""`ModelCheckpoint`: Keras' callback with safe files, the best k, the last n, and a state that survives restarts."""

import functools
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from ...compat.keras_private.callbacks import choose_monitor_op, path_to_save, should_save
from ...compat.upstream import need
from ...distribute.arguments import number, truth, whole_number
from ...distribute.objects import is_remote, upload
from ...distribute.sharding.whole_reads import read_together
from ...distribute.storage import storage_path
from ...optimizers.building import optimizers_of
from ..backup.files.background import BackgroundWriter
from ..backup.save_schedule import SaveSchedule
from ..custom_loop import CustomLoopSupport
from ..output_paths import check_template
from ..safe_file import SaveError, remove_leftovers, save_error
from ..spool import check_writable, find_fixed_folder, name_below
from .checkpoint_files import Saved, keep_foreign_file, remove_checkpoint, valid_entries, write_checkpoint


class ModelCheckpoint(CustomLoopSupport, keras.callbacks.ModelCheckpoint):
    """Saves the model or its weights.

    It does everything that `keras.callbacks.ModelCheckpoint` does, and:

    - a file is written under another name, flushed to disk and renamed, so that it is complete or absent; it
      carries its checksum (`verify_checkpoint`), and nothing else is left in the folder;
    - `keep_best` and `keep_last` remove its other files in its present folder; a file that meets either condition is kept;
    - with an int `save_freq` the count is exact, however many steps run in one compiled call, and across epochs; it may
      also be a time, which is checked whenever a compiled call ends (about every 0.1 s), by one clock for all workers;
    - the best value, the counts and the list of files are part of a backup, so a resumed run remembers them;
    - a file of that name that no `ModelCheckpoint` wrote is not overwritten but renamed to `NAME.old`, with a warning;
    - with several workers only the chief writes.

    Args:
        filepath: str or path; may contain `{epoch}`, `{batch}` and the names of logs, such as
            `"{epoch:03d}-{val_loss:.4f}.keras"`.
        monitor: str; the log that decides what is best.
        verbose: 0, or 1 for a line at each save.
        save_best_only: save only when the monitored value is the best so far.
        save_weights_only: save `.weights.h5` and not the whole `.keras`.
        mode: "min", "max", or "auto": by the name of the metric.
        save_freq: "epoch"; an int, to save every that many steps; or seconds as a float, a `datetime.timedelta` or a string
            such as "30s" or "10min", counted since the last save. The time that a killed run had waited also counts.
        initial_value_threshold: float or None; the value that the first save must beat.
        keep_best: int or None; keep the k files of this run with the best values. Without `keep_last`, no other file is
            written.
        keep_last: int or None; keep the n newest.

    Raises:
        ValueError: as Keras; or `keep_best` or `keep_last` without a placeholder in `filepath`.
        SaveError: (an `OSError`) the directory is gone, full or read-only; earlier files are unchanged.

    Examples:
        >>> checkpoint = unisono.callbacks.ModelCheckpoint("{epoch:02d}.keras", keep_last=1)
        >>> history = model.fit(x, y, epochs=2, verbose=0, callbacks=[checkpoint])
    """

    writes_itself = True

    def __init__(
        self,
        filepath: str | os.PathLike,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        initial_value_threshold: float | None = None,
        *,
        keep_best: int | None = None,
        keep_last: int | None = None,
    ):
        need("`ModelCheckpoint`")
        check_template("`filepath`", filepath)
        place = storage_path("filepath", filepath)
        filepath = str(place)
        self._schedule = SaveSchedule.parse(save_freq, or_never=False)
        whole_number("verbose", verbose, 0)
        number("initial_value_threshold", initial_value_threshold, finite=False, optional=True)
        super().__init__(
            filepath,
            monitor,
            verbose,
            truth("save_best_only", save_best_only),
            truth("save_weights_only", save_weights_only),
            mode,
            self._schedule.amount if self._schedule.unit == "steps" else "epoch",
            initial_value_threshold,
        )
        if self._schedule.unit == "seconds":
            self.save_freq = save_freq
        self._clock = time.monotonic
        self._saved_at = 0.0
        for name, value in (("keep_best", keep_best), ("keep_last", keep_last)):
            if whole_number(name, value, optional=True) is not None and "{" not in self.filepath:
                raise ValueError(
                    f"`{name}` ({value}) needs a different name for each file: put {{epoch}} or {{{monitor}}} into "
                    f"`filepath`. Received: {self.filepath}"
                )
        self.keep_best = keep_best
        self.keep_last = keep_last
        self._folder = find_fixed_folder(place)
        self._saved: list[Saved] = []
        self._writer = BackgroundWriter(repeats=True)  # of uploads

    def steps_until_call(self, step: int) -> int | None:
        """Return the number of steps after which the loop must call `on_train_batch_end`; None: not in this epoch."""
        if self._schedule.unit != "steps":
            return None
        steps = self._batches_seen_since_last_saving + self._not_counted(step)
        return self.save_freq - steps % self.save_freq

    def _not_counted(self, step: int) -> int:
        """Return how many of the epoch's first `step` steps `_batches_seen_since_last_saving` does not count yet."""
        return step if self._last_batch_seen is None else step - self._last_batch_seen - 1

    def get_state(self) -> dict[str, Any]:
        """Return the state for backups."""
        state = {
            "best": self.best,
            "batches_since_save": self._batches_seen_since_last_saving,
            "last_batch": self._last_batch_seen,
            "saved": [tuple(entry) for entry in self._saved],
        }
        if self._schedule.unit == "seconds":
            state["waited"] = self._clock() - self._saved_at
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.best = state["best"]
        self._batches_seen_since_last_saving = state["batches_since_save"]
        self._last_batch_seen = state["last_batch"]
        self._saved = valid_entries(state["saved"])
        self._saved_at = self._clock() - state.get("waited", 0.0)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Remove incomplete files of interrupted writes."""
        self._saved_at = self._clock()
        directory = Path(self.filepath).parent
        if is_remote(self._folder) and self._writes_files():
            check_writable("`filepath` of `ModelCheckpoint`", self._folder)
        elif self._writes_files() and "{" not in str(directory):
            remove_leftovers(directory)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begin to count the batches of an epoch."""
        super().on_epoch_begin(epoch, logs)
        self._last_batch_seen = None

    def _should_save_on_batch(self, batch: int) -> bool:
        """Return whether `save_freq` steps have passed, counting every step of every epoch once; or its seconds."""
        if self._schedule.unit != "steps":
            strategy, now = self.model.distribute_strategy, self._clock()
            due = self._schedule.due(0, 0, now - self._saved_at, strategy)
            self._saved_at = now if due else self._saved_at
            return due
        steps = self._batches_seen_since_last_saving + self._not_counted(batch + 1)
        self._last_batch_seen = batch
        due, self._batches_seen_since_last_saving = divmod(steps, self.save_freq)
        return due > 0

    def _is_improvement(self, monitor_value: Any, reference_value: Any) -> bool:
        """Return whether a value is better, as in Keras, but with any number better than NaN."""
        if reference_value is not None and math.isnan(float(reference_value)):
            return not math.isnan(float(monitor_value))
        return bool(super()._is_improvement(monitor_value, reference_value))

    def _save_model(self, epoch: int, batch: int | None, logs: dict | None) -> None:  # Keras' hook
        logs = logs or {}
        if self.monitor_op is None and (self.save_best_only or self.keep_best):
            choose_monitor_op(self)
        text = path_to_save(self, epoch, batch, logs)
        in_store = is_remote(self._folder)
        folder = self._folder
        path: Any = folder / text.removeprefix(str(folder)).lstrip("/") if in_store else Path(text)
        value = logs.get(self.monitor)
        value = None if value is None or getattr(value, "shape", ()) else float(value)
        entry = Saved(self._name_of(path), value, None)
        if not should_save(self, epoch, batch, logs, path) or not self._is_wanted(entry):
            return
        # Keras writes optimizer state into files of weights, too.
        savers = (self.model, *optimizers_of(self.model, of_layers=True))
        state = [variable for saver in savers for variable in getattr(saver, "variables", ())]
        with read_together(state, here=self._writes_files()):
            if self._writes_files():
                # A file of a store is written into a temporary folder first.
                local = Path(tempfile.mkdtemp(prefix="unisono-"), path.name) if in_store else path
                entry = Saved(entry.name, value, self._write(local))
                if self.verbose > 0:
                    print(f"\nEpoch {epoch + 1}: finished saving model to {path}")
        self._saved = [*self._others(entry), entry]
        unwanted = self._take_unwanted()
        if in_store and self._writes_files():
            self._writer.submit(functools.partial(self._upload, local, path, unwanted))
        else:
            self._remove(unwanted)

    def _upload(self, local: Path, path: Any, unwanted: Sequence[Saved]) -> None:
        try:
            keep_foreign_file(path)
            upload(local, path)
            self._remove(unwanted)
        except OSError as error:
            failed = error if isinstance(error, SaveError) else save_error(path.parent, error)
            raise type(failed)(
                failed.errno, f"{failed.strerror} {path.name} is in {local.parent}."
            ) from error
        shutil.rmtree(local.parent, ignore_errors=True)

    def _writes_files(self) -> bool:
        return self._fit_state().chief

    def pending_upload(self) -> Any:
        """Return the `Future` of the upload that is running, or None."""
        return self._writer.pending

    def on_train_end(self, logs: dict | None = None) -> None:
        """Wait for the last upload."""
        self._writer.wait()

    def on_fit_exit(self) -> None:
        """Wait for the last upload, also after an error. The loop calls it however `fit` ends."""
        try:
            self._writer.wait()
        except OSError as error:
            warnings.warn(str(error))

    def _name_of(self, path: Any) -> str:
        if is_remote(path):
            return name_below(self._folder, path)
        return Path(os.path.relpath(path, self._folder)).as_posix()

    def _write(self, path: Any) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise OSError(
                "Please specify a non-directory filepath for ModelCheckpoint. Filepath used is an existing "
                f"directory: {path}"
            )
        save = self.model.save_weights if self.save_weights_only else self.model.save
        return write_checkpoint(path, lambda temporary: save(str(temporary), overwrite=True))

    def _is_wanted(self, entry: Saved) -> bool:
        """Return whether a file with this value would be kept."""
        if self.keep_best is None or self.keep_last is not None:
            return True
        if entry.value is None:
            warnings.warn(f"`keep_best` ({self.keep_best}) needs the log {self.monitor}, which is missing.")
            return True
        return entry in self._select_kept([*self._others(entry), entry])

    def _select_kept(self, entries: list[Saved]) -> list[Saved]:
        """Return the entries whose files are kept: the `keep_best` best, earliest of equals, and the `keep_last` last."""

        def order(one: Saved, other: Saved) -> int:
            if one.value is None or other.value is None:
                return (one.value is None) - (other.value is None)
            better = self._is_improvement
            return better(other.value, one.value) - better(one.value, other.value)

        best = sorted(entries, key=functools.cmp_to_key(order))[: self.keep_best] if self.keep_best else []
        last = entries[-self.keep_last :] if self.keep_last else []
        return [entry for entry in entries if entry in best or entry in last]

    def _others(self, entry: Saved) -> list[Saved]:
        return [other for other in self._saved if other.name != entry.name]

    def _take_unwanted(self) -> list[Saved]:
        """Return the files to remove, and forget them."""
        kept = self._select_kept(self._saved)
        removes = self.keep_best is not None or self.keep_last is not None
        unwanted = [entry for entry in self._saved if removes and entry not in kept]
        self._saved = kept
        return unwanted

    def _remove(self, entries: Sequence[Saved]) -> None:
        for entry in entries if self._writes_files() else ():
            remove_checkpoint(self._folder, entry)
