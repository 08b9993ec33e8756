"""One profile over all workers: for a range of steps, or on demand from outside."""

import contextlib
import itertools
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.keras_private.callbacks import profile_nothing
from ...distribute.arguments import show, whole_number
from ...distribute.storage import storage_path
from ...distribute.workers.addresses import why_taken
from ...distribute.workers.agreement import from_chief, spans_workers
from ...distribute.workers.cluster import num_workers, worker_index
from ..custom_loop import CustomLoopSupport


class Profiler(CustomLoopSupport):
    """Captures a range of steps on all workers as one profile, for the profile plugin of TensorBoard or XProf.

    All workers begin and end after the same steps. Each writes its part to
    `log_dir/plugins/profile/<time>/worker-<number>.xplane.pb`; where workers share no directory, copy these into one.
    Without GPUs, only worker 0 is profiled and opens its port, because TensorFlow can crash any other worker (see the
    guide to several machines).

    It owns the profiling session from its first step to its last, and the server for profiles on demand. Only one of
    this callback and the traces of `keras.callbacks.TensorBoard(profile_batch=...)` can run at a time.

    Args:
        log_dir: the directory with which you start TensorBoard.
        steps: (first, last), both included and counted from 1 over the whole run; None: only on demand.
        port: int or None; with a port, worker `i` listens at `port + i` while `fit` runs, and
            `python -m unisono profile --service HOST:PORT,...` captures a profile. TensorFlow always opens the port on
            all interfaces: keep it behind a firewall.

    Raises:
        ValueError: `steps` or `port` is invalid.

    Examples:
        >>> profiler = unisono.callbacks.Profiler("logs", steps=(10, 20))  # an argument of `fit(callbacks=[...])`
    """

    output_paths = {"log_dir": True}

    def __init__(
        self, log_dir: str | os.PathLike, steps: tuple[int, int] | None = (10, 20), port: int | None = None
    ) -> None:
        super().__init__()
        if steps is not None:
            pair = isinstance(steps, tuple | list) and len(steps) == 2
            whole = pair and all(isinstance(step, int | np.integer) for step in steps)
            if not whole or not 1 <= steps[0] <= steps[1]:
                raise ValueError(
                    f"`steps` must be (first, last), 1 <= first <= last. Received: {show(steps)}"
                )
        if port is not None and whole_number("port", port) > 65535:
            raise ValueError(f"`port` must be None or a port from 1 to 65535. Received: {port}")
        self.log_dir = storage_path("log_dir", log_dir)
        self.steps = steps
        self.port = port
        self._served = False
        self._steps_before_epoch = 0
        self._temporary: str | None = None
        self._captured = False

    def steps_until_call(self, step: int) -> int | None:
        """Request a call before the first step of the range, and after its last."""
        if self.steps is None or self._captured:
            return None
        total = self._steps_before_epoch + step
        edge = self.steps[1] if self._temporary is not None else self.steps[0] - 1
        return edge - total if edge > total else 1

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the server for profiles on demand."""
        self._captured = False
        self._watch_plain_fit()
        state = self._fit_state()
        self._steps_before_epoch = state.epoch * (state.steps_per_epoch or 0) if self._in_fit else 0
        if self.port is not None and not self._served and may_profile(self.model.distribute_strategy):
            port = self.port + worker_index()
            if taken := why_taken(port):  # TensorFlow reports nothing, and no profile would be served
                raise ValueError(
                    f"`port` of Profiler must be free on this machine, but {port} is not ({taken}): choose another one."
                )
            tf.profiler.experimental.server.start(port)
            self._served = True  # TensorFlow cannot stop it again before the process ends

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin a range that starts with the first step."""
        self._start_or_stop(self._fit_state(epoch=epoch).step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Begin or end the profile."""
        self._start_or_stop(self._fit_state(batch=batch).step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the steps of the epoch."""
        self._steps_before_epoch += self._fit_state().step

    def on_train_end(self, logs: Any = None) -> None:
        """Write a profile whose last step was not reached."""
        if self._temporary is not None:
            self._end()
        elif self.steps is not None and not self._captured:
            warnings.warn(
                f"Profiler captured nothing: training ended before step {self.steps[0]}. Choose earlier `steps`."
            )

    def on_fit_exit(self) -> None:
        """End the session, whatever ended the training."""
        if self._temporary is not None:
            with contextlib.suppress(Exception):
                tf.profiler.experimental.stop(save=False)
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _start_or_stop(self, step: int) -> None:
        if self.steps is None or self._captured:
            return
        (first, last), done = self.steps, self._steps_before_epoch + step
        if self._temporary is None and first - 1 <= done < last:
            self._begin()
        elif self._temporary is not None and done >= last:
            self._end()

    def _begin(self) -> None:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._temporary = tempfile.mkdtemp(prefix=".profile-", dir=self.log_dir)
        try:
            if may_profile(self.model.distribute_strategy):
                tf.profiler.experimental.start(self._temporary)
        except tf.errors.AlreadyExistsError:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
            raise RuntimeError(
                "Profiler cannot begin: another profile is being captured in this process. Pass profile_batch=0 to "
                "TensorBoard, or choose other `steps`."
            ) from None

    def _end(self) -> None:
        """Stop, and move this worker's file to where those of the others are."""
        assert self._temporary is not None  # narrows the type
        if may_profile(self.model.distribute_strategy):
            tf.profiler.experimental.stop()
        moment = int(from_chief([float(int(time.time()))], self.model.distribute_strategy)[0])
        run = self.log_dir / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S", time.gmtime(moment))
        run.mkdir(parents=True, exist_ok=True)
        for file in Path(self._temporary).rglob("*.xplane.pb"):
            name = f"worker-{worker_index()}.xplane.pb" if num_workers() > 1 else file.name
            os.replace(file, _find_unused_path(run / name))
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary, self._captured = None, True


def _find_unused_path(path: Path) -> Path:
    """Return `path`, with a number if it exists, because two profiles may end in the same second."""
    names = (path.with_name(f"{number}-{path.name}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], names) if not each.exists())


def may_profile(strategy: tf.distribute.Strategy) -> bool:
    """Return whether this process can be profiled without a crash: of several workers on CPUs, only worker 0 can.

    When a profile ends, TensorFlow (2.20 and 2.21) matches the beginning of an event in one thread with its end in another
    through pointers into memory that it may have freed (tensorflow/tensorboard#3149). Every collective begins such an event,
    "CollectiveExecutor::CompleteParams", which an answer of worker 0 ends. Worker 0 needs no answer.
    """
    on_cpus = all(device.device_type == "CPU" for device in tf.config.list_physical_devices())
    return worker_index() == 0 or not (on_cpus and spans_workers(strategy))


def keep_from_crash(callback: Any, strategy: tf.distribute.Strategy) -> None:
    """Turn off the profile of a `keras.callbacks.TensorBoard` in a process that TensorFlow's profiler may crash."""
    if isinstance(callback, keras.callbacks.TensorBoard) and not may_profile(strategy):
        profile_nothing(callback)
