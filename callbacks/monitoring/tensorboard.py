"""`TensorBoard`: Keras' callback, with the right steps when many run in one compiled call, under every strategy."""

import contextlib
import os
import time
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private import callbacks as private
from ...compat.upstream import need
from ...distribute.arguments import truth, whole_number
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...distribute.storage import is_store_url, storage_path, tensorflow_path
from ...optimizers.stages.step_hooks import StepHook, add_step_hook, remove_step_hook
from ..custom_loop import CustomLoopSupport


class _Count(StepHook):
    """Counts the steps in a variable."""

    def __init__(self, counter: tf.Variable) -> None:
        self._counter = counter

    def before_step(self, batch: Any) -> None:
        self._counter.assign_add(1)


class TensorBoard(CustomLoopSupport, keras.callbacks.TensorBoard):
    """Writes logs, histograms, graphs and profiles for TensorBoard. It takes the arguments of Keras' callback.

    With `update_freq="batch"` or a number of steps, it also writes `tf.summary` calls inside layers, losses and custom
    steps: each once, at the number of its step (1 for the first), with any number of replicas and workers. Steps are
    counted over all epochs, and a resumed run continues the count. On parameter servers, calls inside steps are not
    written: the coordinator has the file, and the steps run elsewhere.

    Examples:
        >>> history = model.fit(x, y, verbose=0, callbacks=[unisono.callbacks.TensorBoard("logs", update_freq=2)])
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: int | str = "epoch",
        profile_batch: Any = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: Any = None,
    ) -> None:
        need("`TensorBoard`")
        path_of = storage_path if is_store_url(log_dir) else tensorflow_path
        place = path_of("log_dir", log_dir)
        super().__init__(
            str(place),
            whole_number("histogram_freq", histogram_freq, 0),
            truth("write_graph", write_graph),
            truth("write_images", write_images),
            truth("write_steps_per_second", write_steps_per_second),
            whole_number("update_freq", update_freq, words=("epoch", "batch")),
            profile_batch,
            whole_number("embeddings_freq", embeddings_freq, 0),
            embeddings_metadata,
        )
        self.log_dir = place

    def steps_until_call(self, step: int) -> int | None:
        """Return the next step at which something is written, or a profile begins or ends."""
        done = self._global_train_batch
        frequency: Any = self.update_freq
        wanted = [] if frequency == "epoch" else [frequency - done % frequency]
        first, last = private.find_profiled_steps(self) or (0, 0)
        wanted += [at - done for at in (first - 1, last) if at > done]
        return min(wanted, default=None)

    def set_model(self, model: Any) -> None:
        """Begin a `fit` or an `evaluate` (Keras calls this)."""
        self._reject_store()
        super().set_model(model)
        self._last_step = 0
        self._contexts: dict[str, contextlib.ExitStack] = {}
        self._counters: dict[str, tf.Variable] = {}
        self._hooks: list[tuple[str, StepHook]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the writer and add the count of steps to the step."""
        self._global_train_batch = self._global_test_batch = self._last_step = 0
        self._watch_plain_fit()
        if self._writes_in_steps():
            self._enter("train", private.train_writer(self))
            if self._in_fit:
                self.model.make_train_function(force=True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note where the epoch begins."""
        self._last_step = self._fit_state(epoch=epoch).step
        self._epoch_first = self._global_train_batch
        self._epoch_start_time = time.time()
        if self._writes_in_steps():
            self._counters["train"].assign(self._global_train_batch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a profile when its first step is next."""
        self._last_step = self._fit_state().step
        if not self._in_fit and "train" in self._counters:
            self._counters["train"].assign(self._global_train_batch + 1)
        self._batch_start_time = time.time()
        first, _ = private.find_profiled_steps(self) or (None, None)
        if self._global_train_batch + 1 == first:
            private.start_profile(self)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write what is due, and end a profile after its last step."""
        step = self._fit_state(batch=batch).step
        steps, self._last_step = step - self._last_step, step
        self._global_train_batch += steps
        total = self._global_train_batch
        if self._should_write_train_graph:
            self._write_keras_model_train_graph()
            self._should_write_train_graph = False
        frequency: Any = self.update_freq
        if frequency != "epoch" and total % frequency == 0:
            seconds = max(time.time() - self._batch_start_time, 1e-9)
            rate = {"steps_per_second": steps / seconds} if self.write_steps_per_second else {}
            with private.train_writer(self).as_default(), tf.summary.record_if(True):
                for name, value in {**(logs or {}), **rate}.items():
                    tf.summary.scalar(f"batch_{name}", value, step=total)
        if private.is_profiling(self) and total >= (private.find_profiled_steps(self) or (0, 0))[1]:
            private.stop_profile(self)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the epoch's logs and histograms, whatever `update_freq` is."""
        with tf.summary.record_if(True):
            super().on_epoch_end(epoch, logs)
        spool = self._fit_state().spool
        if spool is not None and spool.holds(self.log_dir) and not self._contexts:
            private.begin_new_files(self)  # each is uploaded once

    def on_test_begin(self, logs: Any = None) -> None:
        """Open the writer of validation."""
        if not self._writes_in_steps():
            return
        if "test" not in self._counters:
            self._count("test", self._global_test_batch)
            if getattr(self.model, "_evaluating", False):
                self.model.make_test_function(force=True)
        if getattr(self.model, "_evaluating", False):
            self.model.test_function.backend = "graph"
        self._enter("test", private.validation_writer(self))

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Count the steps of a custom loop; our own loops count theirs."""
        if "test" in self._counters and not getattr(self.model, "_evaluating", False):
            self._counters["test"].assign_add(1)

    def on_test_end(self, logs: Any = None) -> None:
        """Write the results, with the number of updates made so far as the step, as Keras does."""
        if "test" in self._counters:
            self._global_test_batch = int(self._counters["test"].numpy())
        optimizer = self._optimizer
        if hasattr(optimizer, "iterations"):
            with private.validation_writer(self).as_default(), tf.summary.record_if(True):
                for name, value in (logs or {}).items():
                    step = int(optimizer.iterations.numpy())
                    tf.summary.scalar(f"evaluation_{name}_vs_iterations", value, step=step)
        self._leave("test")
        if not self._in_fit and "train" not in self._contexts:
            self._take_out()

    def on_train_end(self, logs: Any = None) -> None:
        """Close what is open."""
        self._leave("train")
        if private.is_profiling(self):
            private.stop_profile(self)
        self._take_out()
        private.close_writers(self)

    def on_fit_exit(self) -> None:
        """Close what is open, also after an error."""
        self._leave("test")
        self._leave("train")
        self._take_out()

    def _writes_in_steps(self) -> bool:
        return self.update_freq != "epoch" and not on_parameter_servers(self.model.distribute_strategy)

    def _enter(self, phase: str, writer: Any) -> None:
        """Make `tf.summary` calls that are traced from now on use `writer`."""
        if phase not in self._counters:
            self._count(phase, self._global_train_batch)
        counter, every = self._counters[phase], self.update_freq
        stack = self._contexts[phase] = contextlib.ExitStack()
        stack.enter_context(writer.as_default(counter))
        stack.enter_context(tf.summary.record_if(lambda: tf.equal(counter % every, 0)))

    def _leave(self, phase: str) -> None:
        if phase in self._contexts:
            self._contexts.pop(phase).close()

    def _count(self, phase: str, done: int) -> None:
        """Add a count of steps to the steps of a loop of ours: a variable on the host, the same for all replicas."""
        with tf.init_scope(), tf.device("CPU:0"):
            counter = self._counters[phase] = tf.Variable(tf.constant(done, tf.int64), trainable=False)
        if self._in_fit or getattr(self.model, "_evaluating", False):
            self._hooks.append((phase, _Count(counter)))
            add_step_hook(self.model, self._hooks[-1][1], phase)

    def _take_out(self) -> None:
        """Remove the counts from the steps, which are compiled again without them."""
        for phase, hook in self._hooks:
            remove_step_hook(self.model, hook)
            setattr(self.model, f"{phase}_function", None)
        self._hooks, self._counters = [], {}

    def _collect_learning_rate(self, logs: Any) -> Any:
        return logs if self._optimizer is None else super()._collect_learning_rate(logs)

    def _compute_steps_per_second(self) -> float:
        seconds = max(time.time() - self._epoch_start_time, 1e-9)
        return (self._global_train_batch - self._epoch_first) / seconds

    def _write_keras_model_train_graph(self) -> None:
        graph = getattr(getattr(self.model, "train_function", None), "graph", lambda: None)()
        if graph is not None:
            with private.train_writer(self).as_default(), tf.summary.record_if(True):
                tf.summary.graph(graph)
