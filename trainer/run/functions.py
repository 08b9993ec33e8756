"""Which function runs a model's steps: in this process, or on the workers of a coordinator."""

from __future__ import annotations

from typing import Any

from ...distribute.parameter_servers.strategy import on_parameter_servers
from ..parameter_servers.runner import ParameterServerRunner
from .predict_function import PredictFunction
from .step_function import StepFunction


def step_function(model: Any, training: bool) -> Any:
    """Runs `train_step` or `test_step` of the model on global batches."""
    if on_parameter_servers(model.distribute_strategy):
        runner = ParameterServerRunner()
        return runner.train_function(model) if training else runner.test_function(model)
    return StepFunction(model, training)


def predict_function(model: Any) -> Any:
    """Runs `predict_step` of the model on global batches."""
    if on_parameter_servers(model.distribute_strategy):
        return ParameterServerRunner().predict_function(model)
    return PredictFunction(model)
