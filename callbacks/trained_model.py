"""The type of a model that trains with Unisono; `unisono.Model` itself is in `trainer/`, which imports from callbacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import keras

from .fit_state import FitState


class TrainedModel(Protocol):
    """A model after `compile`. What it has from Keras is not listed here."""

    optimizer: Any  # an optimizer of ours (`unisono.optimizers.Optimizer` or a `LossScaleOptimizer`); None without one
    steps_per_execution: int  # what `compile` was given; 1 for "auto"
    # Set by callbacks: `fit`, `evaluate` or `predict` ends after this compiled call.
    stop_training: bool
    stop_evaluating: bool
    stop_predicting: bool
    # The compiled steps; None before the first `fit`, `evaluate` or `predict`, and again after `compile`.
    train_function: Any
    test_function: Any
    predict_function: Any
    fit_state: FitState | None  # of the `fit` that is running
    history: keras.callbacks.History  # of the last `fit`
    _evaluating: bool  # whether `evaluate`, or a validation in `fit`, is running
    _pipeline: Any  # the `unisono.distribute.Pipeline` in whose scope the model was made; None outside of one
    _auto_jit: bool  # whether `jit_compile` is "auto"
    _auto_steps: bool  # whether `steps_per_execution` is "auto"
    _fixed_steps: int | None
    _strategy_scope: Callable[[], contextlib.AbstractContextManager[Any]]
    _overrides_step: Callable[[str], bool]
    _has_own_logs: Callable[[bool], bool]
    _optimizer_logs: Callable[[], dict[str, Any]]
    _explain_batch: Callable[[Any], tuple[str, list[dict[str, Any]]]]
    _check_renewal: Callable[[str], None]
    _renew_batch_statistics: Callable[[], None]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass."""
