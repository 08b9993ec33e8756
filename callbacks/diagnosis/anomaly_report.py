"""`AnomalyReport`: which step, layer and batch produced a loss or gradient that is not finite."""

import json
import math
import os
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from ...distribute.parameter_servers.updates import on_parameter_servers
from ...distribute.storage import storage_path
from ...optimizers.stages.gradient_watch import GradientWatch, watch_gradients
from ...optimizers.stages.step_hooks import StepHook, add_step_hook, remove_step_hook
from ..custom_loop import CustomLoopSupport
from ..monitoring.json_lines import jsonable
from ..safe_file import begins_with_json, check_overwrite, write_safely


class AnomalyWarning(UserWarning):
    """The loss or a gradient is not finite; training ends.

    Examples:
        >>> warnings.simplefilter("error", unisono.callbacks.AnomalyWarning)  # raise it
    """


class AnomalyReport(CustomLoopSupport, StepHook):
    """Ends training at the first step whose loss or gradient is not finite, and says where that came from.

    The step is skipped before it changes anything, so the model keeps the state of the step before. The step then
    runs once more, eagerly, on the same batch, which shows the first layer whose output or gradient is not finite.
    The callback copies every batch once and reads gradients once more, so use it to find an anomaly, not in every run.
    Under a dynamic loss scale, gradients that overflow are normal, and are not reported. With parameter servers, the
    report names the gradients, and the step in the order of updates, but neither the layer nor the batch.

    Args:
        path: a JSON file for the report; None: only the warning and `report`.

    Attributes:
        report: None, or a dict with "epoch", "step" (1-based, in the epoch), "exact" (False: that step or one of those
            before it in the same compiled call), "first" (a sentence: what was not finite first), "gradients" (paths of the
            variables whose gradient is not finite) and "batch" (statistics of each part).

    Examples:
        >>> history = model.fit(x, y, verbose=0, callbacks=[unisono.callbacks.AnomalyReport()])
    """

    output_paths = {"path": False}
    waits_for_compiled_calls = True  # the step itself stops; the host finds out when the compiled call ends

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.path = storage_path("path", path, optional=True)
        self.report: dict[str, Any] | None = None
        self._watches: list[GradientWatch] = []
        self._kept: list[Any] = []  # variables with the parts of the last batch, until a guard has tripped
        self._steps_before = self._last_step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Put the guards into the step, before it is compiled."""
        self._watch_plain_fit()
        if self.path is not None and self._fit_state().chief:
            is_own = begins_with_json("epoch", "step", "exact", "first", "gradients", "batch", lines=False)
            check_overwrite("`path` of `AnomalyReport`", self.path, is_own)
        self.report, self._watches, self._kept, self._steps_before = None, [], [], 0
        self._guard()

    def _guard(self) -> None:
        guarded = [o for o in self._optimizers() if getattr(o, "inner_optimizer", None) is None and o.built]
        with self._scope():
            self._watches = [watch_gradients(optimizer, guard=True)[0] for optimizer in guarded]
            for watch in self._watches:
                watch.reset()
            # With parameter servers, a batch is on the worker that has drawn it.
            if self._watches and self._in_fit and not on_parameter_servers():
                self._kept = [_variable_for(s) for s in tf.nest.flatten(self.model.fit_state.source.spec)]
        if self._kept:
            add_step_hook(self.model, self)
        if self._watches or self._in_fit:
            self.model.make_train_function(force=True)

    def _optimizers(self) -> list[Any]:
        return [each for each in vars(self.model).values() if hasattr(each, "gradient_transformers")]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note where the epoch begins."""
        self._last_step = self._fit_state(epoch=epoch).step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Check whether a guard tripped, or the loss was not finite, during the compiled call."""
        step = self._fit_state(batch=batch).step
        if self.report is not None:  # a step that parameter servers had already begun
            return
        with self._scope():
            tripped = [watch for watch in self._watches if watch.tripped]
            good = min((watch.good_steps for watch in tripped), default=0)
        if tripped:
            exact = len(self._watches) == 1
            at = self._last_step + good - self._steps_before + 1 if exact else step
            self._explain(at, sorted({path for watch in tripped for path in watch.not_finite}), exact)
        elif not math.isfinite(np.mean((logs or {}).get("loss", 0.0))):
            self._explain(step, [], exact=step - self._last_step == 1)
        self._steps_before += step - self._last_step
        self._last_step = step
        if not self._watches and not self._in_fit:  # the first step has built the optimizer
            self._guard()
            self._steps_before = 0

    def on_train_end(self, logs: Any = None) -> None:
        """Remove the guards, in a custom loop."""
        if not self._in_fit:
            self.on_fit_exit()

    def on_fit_exit(self) -> None:
        """Remove the guards."""
        remove_step_hook(self.model, self)
        for optimizer in self._optimizers():
            for watch in self._watches:
                remove_step_hook(optimizer, watch)
        if self._watches:
            self.model.train_function = None
        self._watches = []

    def before_step(self, batch: Any) -> None:
        """Keep the batch, unless a guard has tripped."""
        values = tf.nest.flatten(batch)
        if len(values) != len(self._kept):
            return

        def keep() -> tf.Tensor:
            for kept, value in zip(self._kept, values):
                if kept is not None and isinstance(value, tf.Tensor) and kept.dtype == value.dtype:
                    kept.assign(value)
            return tf.constant(True)

        tripped = tf.reduce_any(tf.stack([watch.has_tripped() for watch in self._watches]))
        tf.cond(tripped, lambda: tf.constant(False), keep)

    def _explain(self, step: int, gradients: list[str], exact: bool) -> None:
        state, first, statistics = self._fit_state(), "", []
        # A batch with a ragged or sparse part, or of another kind, is not kept.
        if gradients and self._kept and all(kept is not None for kept in self._kept):
            batch = tf.nest.pack_sequence_as(state.source.spec, [kept.read_value() for kept in self._kept])
            first, statistics = self.model._explain_batch(batch)
        self.report = {
            "epoch": state.epoch,
            "step": step,
            "exact": exact,
            "first": first,
            "gradients": gradients,
            "batch": statistics,
        }
        self.model.stop_training = True
        if not state.chief:
            return
        if self.path is not None:
            text = json.dumps(jsonable(self.report), indent=1).encode()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_safely(self.path, lambda stream: stream.write(text))
        warnings.warn(self._text(), AnomalyWarning, stacklevel=2)

    def _text(self) -> str:
        report: Any = self.report
        what = "a gradient is" if report["gradients"] else "the loss is"
        where = f"step {report['step']}" if report["exact"] else f"the steps up to {report['step']}"
        parts = [f"In {where} of epoch {report['epoch'] + 1} {what} not finite; training ends"]
        if report["gradients"]:
            parts[0] += " with the model as it was before that step"
        if report["first"]:
            parts.append(report["first"].rstrip("."))
        elif report["gradients"]:
            paths = ", ".join(report["gradients"][:5])
            parts.append(f"The gradients of these variables are not finite: {paths}")
        for part in report["batch"]:
            values = ", ".join(f"{key} {part[key]:.4g}" for key in ("min", "max", "mean") if key in part)
            bad = ", ".join(f"{part[key]} {key}" for key in ("nan", "infinite") if part.get(key))
            values += f"; {bad}" if bad else ""
            parts.append(f"Batch: {part['name']} {tuple(part['shape'])} {values}".rstrip())
        return ". ".join(parts) + "."


def _variable_for(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or spec.dtype in (tf.resource, tf.variant):
        return None
    shape = [size or 0 for size in (spec.shape.as_list() if spec.shape.rank is not None else [0])]
    with tf.init_scope(), tf.device("CPU:0"):
        any_shape: Any = None
        return tf.Variable(tf.zeros(shape, spec.dtype), trainable=False, shape=tf.TensorShape(any_shape))
