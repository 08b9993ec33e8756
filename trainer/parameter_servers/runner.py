"""How a model is trained, evaluated and used where its variables are on parameter servers: workers run the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ...callbacks.fit_state import FitState
from ...distribute.parameter_servers.strategy import ParameterServerError, mode_of, pool_of
from ..inputs import Source
from . import evaluation, training
from .synchronous import SynchronousSteps
from .worker_prediction import WorkerPrediction
from .worker_steps import WorkerSteps


class ParameterServerRunner:
    """Runs a model's steps on the workers of its `ParameterServerStrategy`. Keeps nothing itself. Context: host."""

    def train_function(self, model: Any) -> WorkerSteps:
        """What computes training steps on workers.

        Raises:
            ValueError: the cluster or an argument of `compile` does not allow it.
        """
        pool, backups = pool_of(model.distribute_strategy), mode_of(model.distribute_strategy).backup_workers
        if backups is not None:
            return SynchronousSteps(model, pool.num_workers - backups)
        return WorkerSteps(model, training=True)

    def test_function(self, model: Any) -> WorkerSteps:
        """What computes steps of evaluation on workers; raises as `train_function` does."""
        pool_of(model.distribute_strategy)
        return WorkerSteps(model, training=False)

    def predict_function(self, model: Any) -> WorkerPrediction:
        """What predicts batches on workers."""
        return WorkerPrediction(model)

    def train_steps(self, model: Any, state: FitState, callbacks: Any) -> dict[str, Any]:
        """The training steps of the epoch, from where `state` is; returns the logs after the last."""
        return training.train_steps(model, state, callbacks)

    def test_steps(self, model: Any, source: Source, callbacks: Any) -> dict[str, Any]:
        """One pass over `source`: every row is counted once, in order, even when workers are lost; returns the logs."""
        return evaluation.test_steps(model, source, callbacks)

    def predict_steps(
        self, model: Any, source: Source, callbacks: Any, join: Callable[[list[Any]], Any]
    ) -> list[Any]:
        """The outputs of every batch of `source`, in order; `join` makes one structure of several, for callbacks."""
        return evaluation.predict_steps(model, source, callbacks, join)

    @contextlib.contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Names the parameter server that is lost or hangs when the block fails because of it.

        The workers give up the inputs that they hold when the block is left, unless it is part of a running `fit`.
        """
        pool = pool_of(model.distribute_strategy)
        with pool.watching():
            try:
                yield
            except Exception as error:
                hangs = pool.complaint is not None and not isinstance(error, ParameterServerError)
                if hangs or isinstance(error, tf.errors.OpError):
                    pool.check_servers(error)
                raise
            finally:
                if model.fit_state is None:
                    for function in (model.train_function, model.test_function, model.predict_function):
                        if function is not None:
                            function.memory.clear()
