"""What the loops still ask of parameter servers, until they choose what runs a fit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...distribute.parameter_servers.strategy import on_parameter_servers
from .runner import ParameterServerRunner


def is_asynchronous(model: Any) -> bool:
    """Whether the model's variables are on parameter servers."""
    return on_parameter_servers(model.distribute_strategy)


train_steps = ParameterServerRunner().train_steps
test_steps = ParameterServerRunner().test_steps
predict_steps = ParameterServerRunner().predict_steps


def names_lost_servers(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Says which parameter server is gone or hangs, where `loop(model, ...)` fails because one does."""

    @functools.wraps(loop)
    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_asynchronous(model):
            return loop(model, *args, **kwargs)
        with ParameterServerRunner().watching(model):
            return loop(model, *args, **kwargs)

    return wrapped
