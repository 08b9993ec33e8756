"""`BackupAndRestore`: a killed run that is started again ends with the same bits as an uninterrupted run."""

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...compat.keras_private.training import begin_with_epoch
from ...distribute.arguments import one_of, show, truth, whole_number
from ...distribute.workers.agreement import gather_numbers, spans_workers
from ...distribute.workers.newcomers import newcomer_waits
from ...state.identity.table import identity as identity_of
from ...state.trained_model import FitState
from ..custom_loop import CustomLoopSupport
from ..spool import after_uploads
from . import snapshot as fit_snapshot
from .exactness import ExactnessCheck, check_generators
from .files import shard_files
from .files.background import BackgroundWriter
from .files.container import report_damage
from .files.owner import FolderOwner
from .files.store import BackupStore, backup_directory
from .resuming import announce, build_optimizer, exit_with_own_status, on_all_workers
from .save_schedule import NEWCOMER, InterruptionHandlers, SaveSchedule, say_stopped, stop


class BackupAndRestore(CustomLoopSupport):
    """Saves the whole state of training while it runs; the same script, run again, resumes it.

    A backup holds the model; its optimizers with their state, loss scale, accumulators and moving averages; the random
    generators; the position in the data; the metrics of the current epoch; History; and the state of the callbacks.
    `fit` in the restarted script continues at the step after the last save.

    In a custom loop with a `keras.callbacks.CallbackList`, and in plain Keras, a backup holds the model, its optimizers,
    the random generators, the epoch and the step. The loop continues at `initial_epoch` and `initial_step`,
    skips the batches before, and keeps any other state itself.

    Args:
        directory: the folder for backups, created if missing, or a URL of a store such as "s3://bucket/run". Use a
            separate folder for each run: one that another running process uses raises an error. All workers must see
            it. The chief writes the backups, the other workers their own shards.
        save_freq: "epoch"; an int, to save every that many steps; seconds as a float, a `datetime.timedelta` or a string
            such as "30s" or "10min"; or False, to save only before preemption.
        keep: int; number of backups to keep. The newest good one is used; the others are there in case it is damaged.
        save_before_preemption: save at the next step on SIGTERM or SIGUSR1 (then exit with status 143) and on Ctrl-C; main
            thread only. A program's own handler of SIGUSR1 stays.
        delete_when_done: remove the backups when `fit` has finished.
        background: write in a thread while training goes on. A save first waits for the previous one. Errors are raised
            at the next step at which the callback is called, or at the end of `fit` at the latest.
        identity: text that tells this run from others where Unisono cannot, such as a version of your data or code; a backup
            with a different text belongs to a different run.
        generators: random generators of NumPy, Python, TensorFlow or Keras that other modules hold, so that nothing leads
            to them.
        on_damaged: what to do if there are backups and none can be read: "error", or "restart", to train from the beginning
            and leave them there.
        backup_dir: Keras' name for `directory`.
        double_checkpoint: Keras' name: True is `keep=2`, False `keep=1`.
        delete_checkpoint: Keras' name for `delete_when_done`.

    Attributes:
        stall_seconds: float; the time for which saving has held up training in this `fit`.
        saves: int; backups that were begun in this `fit`.
        initial_epoch: int; the epoch at which training began or was resumed; set when it begins.
        initial_step: int; the steps of that epoch that were done.

    Raises:
        ValueError: an argument is wrong.
        BackupMismatchError: (a `ValueError`) when `fit` begins: the backup belongs to another model, optimizer or data set.
        SaveError: (an `OSError`) the directory cannot be written, or another run uses it; earlier backups are unchanged.
        NewerFormatError: a newer version of unisono wrote the newest backup.
        DamagedFileError: (an `OSError`) when `fit` begins: there are backups, but none can be read.

    Examples:
        >>> backup = unisono.callbacks.BackupAndRestore("backup", save_freq="10min")
        >>> history = model.fit(x, y, verbose=0, callbacks=[backup])  # after a kill, start the script again
    """

    # The loop calls it after all others: a backup holds what they have done at the same hook.
    runs_last = True
    output_paths = {"directory": True}
    writes_itself = True

    def __init__(
        self,
        directory: str | os.PathLike | None = None,
        save_freq: Any = "epoch",
        keep: int = 2,
        save_before_preemption: bool = True,
        delete_when_done: bool = True,
        background: bool = True,
        *,
        identity: str | None = None,
        generators: Sequence[Any] = (),
        on_damaged: str = "error",
        backup_dir: str | os.PathLike | None = None,
        double_checkpoint: bool | None = None,
        delete_checkpoint: bool | None = None,
    ):
        super().__init__()
        if double_checkpoint is not None or isinstance(keep, bool):
            keep = 1 + truth("double_checkpoint", keep if double_checkpoint is None else double_checkpoint)
        self.directory = backup_directory(directory, backup_dir)
        self.schedule = SaveSchedule.parse(save_freq)
        self.save_before_preemption = truth("save_before_preemption", save_before_preemption)
        self.delete_when_done = truth("delete_when_done", delete_when_done)
        if delete_checkpoint is not None:
            self.delete_when_done = truth("delete_checkpoint", delete_checkpoint)
        self.background = truth("background", background)
        if not isinstance(identity, str | None):
            raise ValueError(f"`identity` must be None or a str. Received: {show(identity)}")
        self.declared = identity
        self.generators = check_generators(generators)
        self.on_damaged = one_of("on_damaged", on_damaged, ("error", "restart"))
        self.stall_seconds, self.saves = 0.0, 0
        self.initial_epoch = self.initial_step = 0
        self._clock = time.monotonic
        self._owner = FolderOwner(self.directory, runs=self._runs)
        self._store = BackupStore(self.directory, whole_number("keep", keep), self._owner.check)
        self._writer = BackgroundWriter()
        self._buffers: dict[Any, np.ndarray] = {}  # host memory for snapshots, reused for each
        self._handlers = InterruptionHandlers(self._runs)
        self._running = False
        self._before_validation: dict[str, Any] | None = None
        self._current_epoch = 0  # the names under which Keras' callback says how far the last fit got
        self._last_batch_seen = 0
        self._steps_before_epoch = 0

    def steps_until_call(self, step: int) -> int | None:
        """Return the number of steps after which the loop must call `on_train_batch_end`; None: at any time."""
        return self.schedule.steps_until_call(self._steps_before_epoch + step)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Resume from the newest good backup, if there is one."""
        exit_with_own_status()
        fit_state = self._fit_state()
        self._watch_plain_fit()
        if fit_state.custom_loop:
            build_optimizer(self.model, self._scope())
        self.stall_seconds, self.saves = 0.0, 0
        self._steps_before_epoch = self._saved_at_step = 0
        self._exactness = ExactnessCheck(self.model, fit_state)
        self._identity = identity_of(self.model, fit_state, self.declared)
        found = on_all_workers(self.model, fit_state.chief, self._store, self._owner, self.on_damaged)
        self._resume(fit_state, *found)
        self.initial_epoch, self.initial_step = fit_state.epoch, fit_state.step
        self._exactness.check(fit_snapshot.find_state_holders(self.model, fit_state))
        self._saved_at_time = self._clock()
        self._before_validation = None
        self._running = True
        # In a custom loop nothing brings several workers to the same step after a signal.
        one_step = not (fit_state.custom_loop and spans_workers(self.model.distribute_strategy))
        if self.save_before_preemption and one_step:
            self._handlers.install(fit_state)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """In a custom loop, restore what other callbacks did to a resumed epoch."""
        fit_state = self._fit_state(epoch=epoch)
        if fit_state.custom_loop and fit_state.after_epoch_begin is not None:
            fit_state.step = self.initial_step
            fit_state.after_epoch_begin()
            fit_state.after_epoch_begin = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Save if a backup is due, and stop training if that was requested."""
        self._writer.raise_error()
        fit_state = self._fit_state(batch=batch)
        due = self._is_due(fit_state.step)
        self._save_at(fit_state.epoch, fit_state.step, due, ask=due)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Save the beginning of the next epoch, if a backup is due."""
        self._writer.raise_error()
        fit_state = self._fit_state()
        self._steps_before_epoch += fit_state.step
        last = epoch + 1 >= fit_state.epochs or bool(getattr(self.model, "stop_training", False))
        due = self._is_due(0)  # every worker must ask
        due = due or self.schedule.unit == "epoch" or (last and not self.delete_when_done)
        self._save_at(epoch + 1, 0, due, ask=not last)

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Capture what a repeated validation must begin with."""
        if self._running:
            self._before_validation = fit_snapshot.validation_start(self.model, self._fit_state())

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stop a validation if that was requested."""
        fit_state = self._fit_state()
        if self._running and fit_state.save_and_exit:
            self._save_and_stop(fit_state.epoch, fit_state.step)

    def on_test_end(self, logs: dict | None = None) -> None:
        """Discard what `on_test_begin` captured."""
        self._before_validation = None

    def on_train_end(self, logs: dict | None = None) -> None:
        """Wait for the last write, and remove the backups if training is done."""
        self._writer.wait()
        if self.delete_when_done and self._fit_state().chief:
            self._store.delete_all()
            self._owner.release()
            self._store.remove_directory()
        self._store.mark_finished()
        self.on_fit_exit()

    def on_fit_exit(self) -> None:
        """Release signals, memory, the thread and the directory. The loop calls it however `fit` ends."""
        self._running = False
        fit_state = self._fit_state()
        trained = bool(fit_state.steps_per_epoch) and fit_state.step >= fit_state.steps_per_epoch
        self._current_epoch, self._last_batch_seen = fit_state.epoch + trained, max(0, fit_state.step - 1)
        self._handlers.remove()
        self._buffers.clear()
        try:
            self._writer.wait()
        except OSError as error:
            warnings.warn(str(error))
        finally:
            self._owner.release()

    def _resume(self, fit_state: FitState, path: Path | None, content: Any, problems: list[str]) -> None:
        for problem in problems:
            warnings.warn(f"{problem} This backup is skipped.")
        if path is None:
            if problems:
                warnings.warn(
                    f"No backup in {self.directory} is readable: training starts from the beginning."
                )
            return
        advice = " Move the file away to resume from an older backup, unless your callback raised this."
        with report_damage(f"{path} cannot be resumed: restoring its content failed", advice):
            fit_snapshot.check(content, self.model, fit_state, self._identity, path)
            # Going to the position may draw random numbers: their generators are restored after it.
            fit_snapshot.restore_position(content, self.model, fit_state)
            left_over = fit_snapshot.restore_values(content, self.model, fit_state)
        self._steps_before_epoch = content["counters"]["steps_before_epoch"]
        self._saved_at_step = self._steps_before_epoch + fit_state.step
        calendar = content["calendar"]
        if calendar["step"] > 0 or calendar["in_validation"]:

            def after_epoch_begin() -> None:  # which may have changed something
                fit_snapshot.restore_values(content, self.model, fit_state)
                self.model.stop_training = calendar["stop_training"]

            fit_state.after_epoch_begin = after_epoch_begin
        elif calendar["stop_training"]:
            fit_state.epoch = fit_state.epochs
        if fit_state.custom_loop:
            begin_with_epoch(self.model, fit_state.epoch)
        if fit_state.chief:
            announce(path, content, fit_state, left_over)

    def _is_due(self, step: int) -> bool:
        waited = 0.0 if self._writer.busy else self._clock() - self._saved_at_time
        steps, strategy = self._steps_before_epoch + step, self.model.distribute_strategy
        return self.schedule.due(steps, self._saved_at_step, waited, strategy)

    def _save_at(self, epoch: int, step: int, due: bool, ask: bool) -> None:
        """Save if that is `due`, or if training stops here; `ask`: also because a machine waits to join."""
        if ask and newcomer_waits(self.model.distribute_strategy):
            self._fit_state().save_and_exit = NEWCOMER
        if self._fit_state().save_and_exit:
            self._save_and_stop(epoch, step)
        if due:
            self._save(epoch, step)

    def _save_and_stop(self, epoch: int, step: int) -> None:
        reason = self._fit_state().save_and_exit
        assert reason is not None
        self._save(epoch, step)
        self._writer.settle()
        # Leave together: a worker that exits first would look to the others as if it had died.
        gather_numbers([0.0], self.model.distribute_strategy)
        self._handlers.remove()
        if self._fit_state().chief:
            say_stopped(reason, epoch, step, self.directory, self._writer.failed)
        stop(reason)

    def _save(self, epoch: int, step: int) -> None:
        begin = self._clock()
        fit_state = self._fit_state()
        self._writer.settle()
        holders = fit_snapshot.find_state_holders(self.model, fit_state)
        self._exactness.check(holders)
        now = self.model, fit_state, holders, epoch, step
        content, summary = fit_snapshot.capture(*now, self._buffers, self._identity, self._before_validation)
        content["counters"] = {"steps_before_epoch": self._steps_before_epoch}
        strategy = self.model.distribute_strategy
        if (job := shard_files.job(strategy, fit_state.chief, self._store, content, summary)) is not None:
            # Only the chief's backup refers to other files; it waits for the parts of the others.
            self._writer.submit(after_uploads(fit_state, job) if fit_state.chief else job)
            if not self.background:
                self._writer.settle()
        self.saves += 1
        self._saved_at_step, self._saved_at_time = self._steps_before_epoch + step, self._clock()
        self.stall_seconds += self._saved_at_time - begin
