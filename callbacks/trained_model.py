"""What callbacks and the loops of `fit` use of a model that trains with Unisono: the parts of `unisono.Model` by type.

`trainer/` imports these protocols from here, since callbacks, which are below it, use the models too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from .fit_state import FitState


class CompiledModel(Protocol):
    """A model after `compile`.

    Attributes:
        name: of the model.
        built: whether its variables exist.
        optimizer: an optimizer of ours (`unisono.optimizers.Optimizer` or a `LossScaleOptimizer`); None without one.
        loss: as it was given to `compile`.
        run_eagerly: whether steps are run without compiling them.
        jit_compile: whether `compile` was given True.
        steps_per_execution: what `compile` was given; 1 for "auto".
        stop_training: set by callbacks: `fit` ends after this execution.
        stop_evaluating: the same for `evaluate`.
        stop_predicting: the same for `predict`.
        train_function: what the runner made to run training steps; None before, and again after `compile`.
        test_function: the same for steps of evaluation.
        predict_function: the same for steps of prediction.
        _pipeline: the `unisono.distribute.Pipeline` in whose scope the model was made; None outside of one.
        _auto_jit: whether `jit_compile` is "auto".
        _auto_steps: whether `steps_per_execution` is "auto".
    """

    name: str
    built: bool
    optimizer: Any
    loss: Any
    run_eagerly: bool
    jit_compile: bool
    steps_per_execution: int
    stop_training: bool
    stop_evaluating: bool
    stop_predicting: bool
    train_function: Any
    test_function: Any
    predict_function: Any
    _pipeline: Any
    _auto_jit: bool
    _auto_steps: bool

    # What Keras keeps in a model.

    @property
    def distribute_strategy(self) -> tf.distribute.Strategy:
        """The strategy that the model was built under, or TensorFlow's default one."""

    @property
    def dtype_policy(self) -> keras.DTypePolicy:
        """The policy of the model itself."""
        ...

    @property
    def layers(self) -> Sequence[keras.layers.Layer]:
        """The layers that the model holds itself."""
        ...

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics of `compile` and of layers, the mean of the loss first."""
        ...

    @property
    def metrics_variables(self) -> list[keras.Variable]:
        """The state of the metrics."""
        ...

    @property
    def losses(self) -> list[Any]:
        """What layers add to the loss, and regularization."""
        ...

    @property
    def variables(self) -> list[keras.Variable]:
        """Weights, other state of layers, and seed generators."""
        ...

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        """The weights that training updates."""
        ...

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        """The weights that it does not update by gradients."""
        ...

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """The same, with the states of seed generators."""
        ...

    # What Keras offers, and a user may override.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass."""

    def train_step(self, data: Any) -> Any:
        """One training step on a replica's rows; returns the logs."""

    def test_step(self, data: Any) -> Any:
        """One step of evaluation on a replica's rows; returns the logs."""

    def predict_step(self, data: Any) -> Any:
        """The outputs for a replica's rows."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of a replica's rows."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Updates the metrics; returns their results."""
        ...

    def get_metrics_result(self) -> dict[str, Any]:
        """The results of the metrics, by name."""
        ...

    def reset_metrics(self) -> None:
        """Sets every metric to its initial state."""

    def count_params(self) -> int:
        """The number of numbers in the weights."""
        ...

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints a table of the layers."""

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Writes the model to a file."""

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Writes the weights to a file."""

    # What is ours.

    def make_train_function(self, force: bool = False) -> Any:
        """Makes and returns `train_function`; with `force` it is made again."""

    def make_test_function(self, force: bool = False) -> Any:
        """Makes and returns `test_function`."""

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes and returns `predict_function`."""

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
    """A model as the loops have it.

    Attributes:
        fit_state: the calendar of the `fit` that is running; None while there is none.
        history: of the last `fit`.
        _evaluating: whether `evaluate`, or a validation in `fit`, is running.
    """

    fit_state: FitState | None
    _evaluating: bool
    history: keras.callbacks.History


class ModelInFit(CompiledModel, Protocol):
    """A model as callbacks have it between `on_train_begin` and `on_train_end`.

    Attributes:
        fit_state: the calendar of the `fit`.
    """

    fit_state: FitState
