"""What the host does around the steps of one pass over the data: callbacks, clocks, and the errors of arguments."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import computes_again, layers_of
from ...compat.keras_private.training import loss_tracker
from ...compat.keras_private.variables import bytes_of
from ...compat.upstream_places import pythonify_logs
from ...distribute.hardware.device_memory import in_words
from ...distribute.mesh import mesh_of
from ...distribute.sharding.sharded import LEVELS, SHARDABLE, level_of
from ...distribute.workers.peer_monitor import monitored_collective
from ...optimizers.building import optimizers_of
from ...state.trained_model import FitState, TrainedModel
from ..inputs import Source
from .checks.argument_errors import explain_errors
from .checks.overflow import check_progress
from .logs.step_logs import StepLogs
from .loops.compiled_calls import CompiledCall
from .slow_steps import SlowSteps

_STOPS = {"train": "stop_training", "test": "stop_evaluating", "predict": "stop_predicting"}


class Pass:
    """One pass of "train", "test" or "predict", after `step` steps of it. `Runner.run_steps` calls its methods.

    `stop` is the attribute of the model with which callbacks end it. `replaced`: whether it ended because a callback made
    other steps. Context of the methods: host.
    """

    def __init__(
        self,
        model: TrainedModel,
        source: Source,
        callbacks: keras.callbacks.CallbackList,
        phase: str,
        step: int = 0,
        function: Any = None,
        state: FitState | None = None,
    ) -> None:
        self.model, self.source, self.callbacks = model, source, callbacks
        self.phase, self.stop, self.step = phase, _STOPS[phase], step
        self.function = function or getattr(model, f"{phase}_function")
        self.fixed_steps, self.epoch_steps, self.replaced = model._fixed_steps, source.steps_per_epoch, False
        self.step_logs: dict[str, Any] = {}
        self._step_logs = StepLogs(callbacks.callbacks, state or self, self.function, self.fixed_steps, phase)

    def begin(self, call: CompiledCall) -> None:
        """Begin a compiled call."""
        getattr(self.callbacks, f"on_{self.phase}_batch_begin")(call.first)

    def errors(self, call: CompiledCall) -> contextlib.AbstractContextManager[None]:
        """Add what the user can do to errors of the compiled call in the block; callbacks get the steps before it."""
        state = self.model.fit_state
        argument = "validation_data" if state is not None and state.validation is self.source else ""
        source, first, step = self.source, call.first == 0, f"{self.phase}_step"
        return self._step_logs.report_failed_call(
            explain_errors(self.model, source.spec, source.batch_size, step, first, argument)
        )

    def end(self, call: CompiledCall, done: int, results: Any) -> Any:
        """Note that the call has run `done` steps; return its results as callbacks get them, logs as numbers."""
        if self.phase == "predict":
            return results
        logs = pythonify_logs(results)
        self._step_logs.end_call(done, logs)
        return logs

    def epoch_logs(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Return the logs of the pass, `logs` being those of its last step.

        Where a custom step returns logs with the names of the metrics, they are the metrics' results, as in Keras; of the
        mean of the loss only if the step has updated it.
        """
        model = self.model
        if not model._has_own_logs(self.phase == "train"):
            return logs
        with monitored_collective():  # workers add up their parts
            results = pythonify_logs(model.get_metrics_result())
            if logs.keys() - model._optimizer_logs().keys() != results.keys():
                return logs
            mean = loss_tracker(model)
            if any(metric is mean for metric in model.metrics) and not mean.count.numpy():
                results[mean.name] = logs[mean.name]
        return {**logs, **results}


class TrainingPass(Pass):
    """The training steps of an epoch, from `state` on. `logs` are those after the last step."""

    def __init__(self, model: TrainedModel, state: FitState, callbacks: keras.callbacks.CallbackList) -> None:
        super().__init__(model, state.source, callbacks, "train", state.step, state=state)
        state.times.lap("other")
        self._state, self.logs, self.epoch_steps = state, state.step_logs, state.steps_per_epoch
        state.slow_steps = self._watched = state.slow_steps or SlowSteps(model, state)
        self._watched.begin(self.function)

    def begin(self, call: CompiledCall) -> None:
        """Begin a compiled call."""
        self._state.times.lap("input")
        super().begin(call)
        self._state.times.lap("callbacks")

    @contextlib.contextmanager
    def errors(self, call: CompiledCall) -> Iterator[None]:
        """As in `Pass`."""
        with with_advice(self.model, self.source.batch_size), super().errors(call):
            yield

    def end(self, call: CompiledCall, done: int, results: Any) -> Any:
        """Do as `Pass`; callbacks that read each step have been called."""
        model, state = self.model, self._state
        self.logs = pythonify_logs({**results, **model._optimizer_logs()})
        self._step_logs.end_call(done, self.logs)
        state.step_logs = self.logs
        self._warn_of_nan(call.first + 1, call.first + done)
        check_progress(model, call, done)
        self._call = call, done
        return self.logs

    def _warn_of_nan(self, first: int, last: int) -> None:
        """Warn once where the loss has become NaN in a call with these steps of the epoch, counted from 1."""
        state, loss = self._state, self.logs.get("loss")
        if state.warned_of_nan or not state.chief or not isinstance(loss, float) or loss == loss:
            return
        state.warned_of_nan = True
        where = f"step {last}" if first == last else f"one of the steps {first} to {last}"
        warnings.warn(
            f"The loss became NaN in {where} of epoch {state.epoch + 1}: `unisono.mixed_precision.diagnose(model, batch)` "
            "names the layer; see docs/guides/debug-nan.md.",
            stacklevel=2,
        )

    def call_callbacks(self, batch: int, logs: dict[str, Any]) -> None:
        """Pass the results of a compiled call to callbacks; `batch` is the number of its last batch."""
        times = self._state.times
        times.lap("compute")
        self.callbacks.on_train_batch_end(batch, logs)
        times.lap("callbacks")
        self._watched.end_call(*self._call)


@contextlib.contextmanager
def with_advice(model: TrainedModel, samples: int | None) -> Iterator[None]:
    """Add a note with options to an out-of-memory error of a training step; `samples` of a full global batch."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        each = f"{-(-(samples or 1) // mesh_of(model.distribute_strategy).shape[0])} samples{model._runner.all_of}"
        state = [v for optimizer in optimizers_of(model) for v in optimizer.variables]
        weights, own = in_words(bytes_of(*model.variables)), in_words(bytes_of(*state))
        error.add_note(
            f"Memory of a replica with {each}: weights {weights}, optimizer state {own}; gradients "
            f"and activations take more. Less memory: {'; '.join(_list_options(model))}. See docs/guides/memory.md."
        )
        raise


def _list_options(model: TrainedModel) -> Iterator[str]:
    """Yield what needs less memory than the model's setup, beginning with the smallest changes."""
    strategy, layers = model.distribute_strategy, layers_of(model)
    mesh, level = mesh_of(strategy), level_of(strategy)
    yield "a smaller batch, also with `gradient_accumulation_steps`"
    if model._runner.rematerialization is not None and not any(map(computes_again, layers)):
        yield model._runner.rematerialization
    if mesh.divides_weights:
        yield f"layouts that divide more weights, or more devices along {mesh.names[1]!r}"
    if isinstance(strategy, SHARDABLE) and strategy.num_replicas_in_sync > 1 and level != LEVELS[-1]:
        if level is None:
            yield "`unisono.distribute.sharded(strategy)`"
        if not mesh.divides_weights:
            yield f'`unisono.distribute.sharded(strategy, level="{LEVELS[-1]}")`'
    if all(layer.compute_dtype not in ("float16", "bfloat16") for layer in layers):
        yield "a half-precision policy"
    if not mesh.divides_weights:
        yield "a `unisono.distribute.Pipeline` over more devices"
