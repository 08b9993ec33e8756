"""Trains, evaluates and predicts with a model whose variables are on parameter servers: workers run the steps."""

import contextlib
from collections.abc import Iterator
from typing import Any

from ...distribute.parameter_servers.strategy import pool_of
from ...distribute.parameter_servers.worker_pool import ParameterServerError
from ...state.trained_model import TrainedModel
from ..run.fit_loop import Runner
from ..run.passes import Pass
from .piece_schedule import Schedule
from .worker_function import WorkerFunction, WorkerPrediction
from .worker_steps import WorkerSteps


class ParameterServerRunner(Runner):
    """Runs a model's steps on the workers of its `ParameterServerStrategy`. Has no state. Context: host."""

    in_process = partitions = False

    def function(self, model: TrainedModel, phase: str) -> WorkerFunction:
        """Return the steps on workers; raise a `ValueError` if the cluster or an argument of `compile` forbids it."""
        return WorkerPrediction(model) if phase == "predict" else WorkerSteps(model, phase == "train")

    def prepare(self, *_: Any) -> None:
        """Do nothing: workers always run the graph without XLA."""

    @contextlib.contextmanager
    def calls(self, steps: Pass) -> Iterator[Any]:
        """Yield the pieces of a pass. Every sample counts once, even if workers are lost; in order, except in training."""
        in_training = steps.phase == "train"
        strategy = steps.model.distribute_strategy
        max_staleness = getattr(strategy, "max_staleness", None) if in_training else None
        schedule = Schedule(steps, max_staleness)
        if schedule.empty:  # the epoch, or the rest of it, has no batch
            yield ()
            return
        with steps.function.phase(not in_training, max_staleness):
            yield schedule

    @contextlib.contextmanager
    def watch(self, model: TrainedModel) -> Iterator[None]:
        """Name the lost or hanging parameter server when the block fails because of it.

        At its end the workers free their inputs, unless the block is part of a running `fit`.
        """
        pool = pool_of(model.distribute_strategy)
        with pool.watch():
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
