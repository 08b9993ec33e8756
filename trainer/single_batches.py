"""`SingleBatches`: one step on one global batch, for custom loops."""

from __future__ import annotations

from typing import Any

from . import checks
from .compilation import runner_of
from .partition.steps.explain import StepExplanation
from .run.on_batch import explain_step, on_batch, predict_on_batch
from .step.variable_placement import bring_along


class SingleBatches:
    """A part of `Trainer`: Keras' methods for one batch. Context: host, in or outside of the strategy's scope."""

    def train_on_batch(
        self: Any,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Runs one training step on one global batch, as `keras.Model.train_on_batch`.

        Args:
            x: inputs of the batch: an array `(batch, ...)` or a nest of them.
            y: targets `(batch, ...)` or a nest of them.
            sample_weight: weights `(batch,)` of the losses of the samples, or `(batch, steps)` for sequences.
            class_weight: dict from class (int) to weight (float), for one output; other classes weigh 1.
            return_dict: bool; return a dict from the names of the loss and the metrics to their values.

        Returns:
            The loss and the metrics so far, since `reset_metrics` was called, in the form that `evaluate` returns.
        """
        self._ready("train_on_batch")
        return on_batch(self, runner_of(self), True, x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(
        self: Any, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Computes the loss and the metrics of one global batch, as `keras.Model.test_on_batch`.

        Args:
            x: inputs of the batch: an array `(batch, ...)` or a nest of them.
            y: targets `(batch, ...)` or a nest of them.
            sample_weight: weights `(batch,)`, or `(batch, steps)` for sequences.
            return_dict: bool; return a dict from the names of the loss and the metrics to their values.

        Returns:
            The loss and the metrics so far, since `reset_metrics` was called, in the form that `evaluate` returns.
        """
        self._ready("test_on_batch")
        return on_batch(self, runner_of(self), False, x, y, sample_weight, None, return_dict)

    def explain_step(self: Any, x: Any, y: Any = None, sample_weight: Any = None) -> StepExplanation:
        """Explains the collectives of one training step, their sizes, and the lines of user code that cause them.

            print(model.explain_step(x[:64], y[:64]))

        The step is traced and not run.

        Args:
            x: inputs of one global batch: an array `(samples, ...)` or a nest of them.
            y: targets `(samples, ...)` or a nest of them.
            sample_weight: weights `(samples,)`.

        Returns:
            The explanation: `str()` gives a readable text; `collectives`, `exits` and `whole` are its parts.

        Raises:
            ValueError: the model's strategy has one replica.
        """
        self._ready("explain_step")
        return explain_step(self, runner_of(self), x, y, sample_weight)

    def predict_on_batch(self: Any, x: Any) -> Any:
        """Computes the outputs for one global batch, as `keras.Model.predict_on_batch`.

        Args:
            x: inputs of the batch: an array `(batch, ...)` or a nest of them.

        Returns:
            A NumPy array `(batch, ...)` or a nest of them.
        """
        bring_along(self, "predict_on_batch")
        checks.check_stateful(self, "predict_on_batch")
        return predict_on_batch(self, runner_of(self), x)
