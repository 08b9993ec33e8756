"""The only place that chooses the runner of a model's steps."""

from __future__ import annotations

from ..callbacks.trained_model import TrainedModel
from ..distribute.parameter_servers.updates import on_parameter_servers
from .parameter_servers.runner import ParameterServerRunner
from .pipeline.runner import PipelineRunner
from .run.runner import Runner


def runner_of(model: TrainedModel) -> Runner:
    """The runner for `model`: on the workers of its parameter servers, in the stages of its pipeline, or the plain one."""
    if on_parameter_servers(model.distribute_strategy):
        return ParameterServerRunner()
    return Runner() if model._pipeline is None else PipelineRunner()
