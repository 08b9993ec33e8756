"""Which function runs a model's steps: in this process, or on the workers of a coordinator."""

from __future__ import annotations

from typing import Any

from ...distribute.parameter_servers.strategy import mode_of, on_parameter_servers, pool_of
from ..parameter_servers.synchronous import SynchronousSteps
from ..parameter_servers.worker_prediction import WorkerPrediction
from ..parameter_servers.worker_steps import WorkerSteps
from .predict_function import PredictFunction
from .step_function import StepFunction


def step_function(model: Any, training: bool) -> Any:
    """Runs `train_step` or `test_step` of the model on global batches."""
    strategy = model.distribute_strategy
    if on_parameter_servers(strategy):
        pool_of(strategy)
        backups = mode_of(strategy).backup_workers
        if training and backups is not None:
            return SynchronousSteps(model, pool_of(strategy).num_workers - backups)
        return WorkerSteps(model, training)
    return StepFunction(model, training)


def predict_function(model: Any) -> Any:
    """Runs `predict_step` of the model on global batches."""
    if on_parameter_servers(model.distribute_strategy):
        return WorkerPrediction(model)
    return PredictFunction(model)
