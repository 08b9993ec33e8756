"""The type of a model that trains with Unisono, for callbacks and for the loops of `fit`.

The class `unisono.Model` is in `trainer/`, which imports from callbacks and not the reverse.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import keras

from .fit_state import FitState


class CompiledModel(Protocol):
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
    _pipeline: Any  # the `unisono.distribute.Pipeline` in whose scope the model was made; None outside of one
    _auto_jit: bool  # whether `jit_compile` is "auto"
    _auto_steps: bool  # whether `steps_per_execution` is "auto"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of the samples of a replica."""

    @property
    def _fixed_steps(self) -> int | None: ...

    def _strategy_scope(self) -> contextlib.AbstractContextManager[Any]: ...

    def _overrides_step(self, name: str) -> bool: ...

    def _has_own_logs(self, training: bool) -> bool: ...

    def _optimizer_logs(self) -> dict[str, Any]: ...

    def _explain_batch(self, batch: Any) -> tuple[str, list[dict[str, Any]]]: ...

    def _check_renewal(self, asked_by: str) -> None: ...

    def _renew_batch_statistics(self) -> None: ...


class TrainedModel(CompiledModel, Protocol):
    """A model as the loops have it."""

    fit_state: FitState | None  # of the `fit` that is running
    _evaluating: bool  # whether `evaluate`, or a validation in `fit`, is running
    history: keras.callbacks.History  # of the last `fit`
