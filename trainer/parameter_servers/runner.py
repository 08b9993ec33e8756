"""Trains, evaluates and predicts with a model whose variables are on parameter servers: workers run the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ...callbacks.call_schedule import logs_of_one_step, replay_steps
from ...compat.keras_private.optimizers import call_count
from ...compat.keras_private.training import pythonify_logs
from ...distribute.parameter_servers.strategy import pool_of
from ...distribute.parameter_servers.worker_pool import ParameterServerError
from ...mixed_precision import skipped_steps
from ...optimizers.held_optimizers import optimizers_of
from ...state.trained_model import FitState, TrainedModel
from ..inputs import Source
from ..run.runner import Runner
from .schedule import Schedule, next_stop, wants_each_step
from .worker_function import WorkerFunction, WorkerPrediction
from .worker_steps import WorkerSteps

_NOT_SEARCHED = (
    "The layer that overflows is not searched for on parameter servers: run one step on one device"
)


class ParameterServerRunner(Runner):
    """Runs a model's steps on the workers of its `ParameterServerStrategy`. Has no state. Context: host."""

    def function(self, model: TrainedModel, phase: str) -> WorkerFunction:
        """The steps on workers; raises `ValueError` where the cluster or an argument of `compile` does not allow it."""
        return WorkerPrediction(model) if phase == "predict" else WorkerSteps(model, phase == "train")

    def begin_fit(self, model: TrainedModel, state: FitState) -> None:
        """Does nothing: workers always run the graph without XLA."""

    def train_steps(
        self, model: TrainedModel, state: FitState, callbacks: keras.callbacks.CallbackList
    ) -> dict[str, Any]:
        """The training steps of the epoch, from where `state` is; returns the logs after the last."""
        steps, hooks = model.train_function, callbacks.callbacks
        max_staleness = getattr(model.distribute_strategy, "max_staleness", None)  # not of TensorFlow's class
        schedule = Schedule(
            steps,
            state.source,
            callbacks.on_train_batch_begin,
            lambda: model.stop_training,
            step=state.step,
            epoch_steps=state.steps_per_epoch,
            most=1 if steps.fixed_steps is None and wants_each_step(hooks) else max_staleness,
            next_stop=lambda step: next_stop(hooks, step),
        )
        if schedule.empty:  # the epoch, or the rest of it, has no batch
            return state.step_logs
        totals, count, logs = steps.totals(), _UpdateCount(model), {}
        with steps.phase(max_staleness) as phase:
            for done, results in steps.results(phase, schedule.next, schedule.arrived):
                totals.add(results)
                state.step += done
                if schedule.at_stop():
                    count.correct(totals, phase.losses)
                    totals.commit()
                # Mixed-precision training in which every step is skipped ends here.
                skipped_steps.check_progress(optimizers_of(model), lambda loss_scale: _NOT_SEARCHED)
                logs = pythonify_logs({**totals.logs(), **model._optimizer_logs()})
                state.step_logs = logs
                replay_steps(hooks, state, state.step - 1, logs_of_one_step(logs), replayed=False)
                callbacks.on_train_batch_end(state.step - 1, logs)
        count.correct(totals, phase.losses)
        totals.commit()
        return logs

    def test_steps(
        self,
        model: TrainedModel,
        source: Source,
        callbacks: keras.callbacks.CallbackList,
        passes: int,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """One pass over `source`: counts every sample once, in order, even when workers are lost."""
        function, begin = model.test_function, callbacks.on_test_batch_begin
        totals, done = None, 0
        for steps, results in _in_order(function, source, begin, lambda: model.stop_evaluating):
            totals = totals or function.totals()
            totals.add(results)
            done += steps
            yield done - 1, pythonify_logs(totals.logs())
        if totals is not None:
            totals.commit()

    def predict_steps(
        self, model: TrainedModel, source: Source, callbacks: keras.callbacks.CallbackList
    ) -> Iterator[tuple[int, list[Any]]]:
        """One pass over `source`, in order."""
        steps, begin = 0, callbacks.on_predict_batch_begin
        for _, outputs in _in_order(model.predict_function, source, begin, lambda: model.stop_predicting):
            steps += len(outputs)
            yield steps - 1, outputs

    @contextlib.contextmanager
    def watching(self, model: TrainedModel) -> Iterator[None]:
        """Names the lost or hanging parameter server when the block fails because of it.

        At its end the workers free their inputs, unless the block is part of a running `fit`.
        """
        pool = pool_of(model.distribute_strategy)
        with pool.watching():
            try:
                yield
            except ParameterServerError:
                raise
            except Exception as error:
                pool.check_servers(error)
                raise
            finally:
                if model.fit_state is None:
                    for function in (model.train_function, model.test_function, model.predict_function):
                        if function is not None:
                            function.free_inputs()


def _in_order(
    function: WorkerFunction, source: Source, begin: Callable[[int], None], stopped: Callable[[], bool]
) -> Iterator[tuple[int, Any]]:
    """(steps, result) of each piece of one pass over `source`, in its order."""
    schedule = Schedule(function, source, begin, stopped, epoch_steps=source.steps_per_epoch)
    if schedule.empty:
        return
    with function.phase() as phase:
        yield from function.results(phase, schedule.next, schedule.arrived, in_order=True)


class _UpdateCount:
    """The optimizer's count of updates, corrected after a worker was lost while it was counting."""

    def __init__(self, model: TrainedModel) -> None:
        optimizer: Any = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        self._variable: Any = None
        if optimizer is not None and not model._overrides_step("train_step"):
            self._variable = call_count(optimizer)
        self._start = int(self._variable.numpy()) if self._variable is not None else 0

    def correct(self, totals: Any, losses: int) -> None:
        """Sets the count to the number of applied steps, if a worker was lost. Context: host, no step in progress."""
        if losses and self._variable is not None:
            self._variable.assign(self._start + totals.applied)
