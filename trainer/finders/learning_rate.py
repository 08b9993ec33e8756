"""`find_learning_rate`: the loss at learning rates that grow from step to step, and the rate at which it falls fastest."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import keras
import numpy as np

from ...compat.keras_private.optimizers import own_learning_rate
from ...distribute.arguments import number, shown, whole_number
from .. import checks
from .trial import check_model, trial

_SMOOTHING = 0.9  # the share of the average that is kept at every step
_DIVERGED = 4.0  # times the smallest loss so far
# Points at the beginning, where the average is noisy, and at the end, where the loss diverges.
_SKIPPED = 10, 1


class LearningRates(NamedTuple):
    """The result of `find_learning_rate`.

    Attributes:
        suggestion: float; the rate at which the loss fell fastest; None where it never fell.
        rates: list of floats; the learning rate of each step.
        losses: list of floats; the loss of each of these steps, before its update.
    """

    suggestion: float | None
    rates: list[float]
    losses: list[float]


def find_learning_rate(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    per_replica_batch_size: int | None = None,
    lowest: float = 1e-7,
    highest: float = 1.0,
    steps: int = 100,
) -> LearningRates:
    """Trains a few steps with a growing learning rate, and finds the rate at which the loss falls fastest.

        rate(i) = lowest * (highest / lowest) ** (i / (steps - 1))

    It ends early when the loss has become four times the smallest one, or is not finite. It sets nothing: variables, random
    generators and the input are restored bit-for-bit. A later training run is the same as without the finder.

    Args:
        model: compiled, with all of its variables, and an optimizer whose learning rate is a number.
        x: inputs, of any kind that `fit` takes and that can be read again, so no generator.
        y: targets, where `x` is arrays.
        sample_weight: weights of the samples, where `x` is arrays.
        batch_size: int; samples of the global batch, where `x` is arrays. None: 32.
        per_replica_batch_size: int, instead of `batch_size`: the global batch is this times `num_replicas_in_sync`.
        lowest: float; the learning rate of the first step.
        highest: float; the learning rate of the last step.
        steps: int; at least 20. Data that has fewer batches is read again.

    Raises:
        TypeError, ValueError: an argument is invalid; nothing was run.

    Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3.

    Examples:
        >>> found = unisono.find_learning_rate(model, x, y)
        >>> model.optimizer.learning_rate = found.suggestion
    """
    steps = whole_number("steps", steps, least=20)
    number("lowest", lowest, above=0)
    number("highest", highest, above=lowest)
    sweep = _Sweep([lowest * (highest / lowest) ** (i / (steps - 1)) for i in range(steps)])
    check_model(model, "find_learning_rate")
    _check_rate(model.optimizer)
    samples = checks.global_batch_size(model, x, batch_size, per_replica_batch_size)
    with trial(model, "find_learning_rate", x, y, sample_weight, samples, steps) as train:
        train(sweep)
    losses = sweep.losses
    return LearningRates(_steepest(sweep.rates[: len(losses)], losses), sweep.rates[: len(losses)], losses)


class _Sweep(keras.callbacks.Callback):
    """Sets the learning rate of each step, and records its loss."""

    model: Any

    def __init__(self, rates: list[float]) -> None:
        super().__init__()
        self.rates = rates
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the next rate and resets the metrics, so that the loss is that of one step."""
        self.model.optimizer.learning_rate = self.rates[len(self.losses)]
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Records the loss."""
        loss = (logs or {}).get("loss")
        if loss is None:
            raise ValueError(
                f"`find_learning_rate` needs the log `loss`: let the model's `train_step` return it in addition to "
                f"{shown(sorted(logs or {}))}."
            )
        self.losses.append(float(loss))
        smooth = _smoothed(self.losses)
        diverged = not math.isfinite(smooth[-1]) or (
            len(smooth) > sum(_SKIPPED) and smooth[-1] > _DIVERGED * abs(min(smooth))
        )
        if diverged or len(self.losses) == len(self.rates):
            self.model.stop_training = True


def _smoothed(losses: list[float]) -> list[float]:
    """The exponential average of the losses, without the bias of its initial value."""
    average, result = 0.0, []
    for i, loss in enumerate(losses, 1):
        average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
        result.append(average / (1 - _SMOOTHING**i))
    return result


def _steepest(rates: list[float], losses: list[float]) -> float | None:
    """The rate at which the smoothed loss falls fastest, relative to the logarithm of the rate."""
    first, last = _SKIPPED
    smooth = np.asarray(_smoothed(losses), np.float64)[first:-last]
    smooth = smooth[np.isfinite(smooth)]
    if len(smooth) < 3:
        return None
    slopes = np.gradient(smooth)
    lowest = int(np.argmin(slopes))
    return rates[first + lowest] if slopes[lowest] < 0 else None


def _check_rate(optimizer: Any) -> None:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    several = isinstance(inner, keras.optimizers.MultiOptimizer)
    if inner is None or several or not isinstance(own_learning_rate(inner), keras.Variable):
        raise ValueError(
            "`find_learning_rate` sets the learning rate of every step, but the optimizer of the model has one schedule or "
            f"several: compile it with a number, and with the schedule afterwards. Received: {shown(optimizer)}"
        )
