"""`StochasticWeightAveraging`: training ends with the mean of the weights that it passed."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from ..compat.keras_private.layers import layers_of
from ..compat.shared_change import share_attributes
from ..distribute.arguments import whole_number
from .backup.save_schedule import SaveSchedule


class StochasticWeightAveraging(keras.callbacks.Callback):
    """Averages the weights of the last epochs, and sets the average when training ends.

        average = (w_1 + ... + w_n) / n        of the weights after each epoch from `start_from_epoch` on

    `BatchNormalization` layers then need the statistics of the averaged weights, computed in an additional pass over
    the training data, as the mean over its batches. The learning rate must stay high; Keras'
    schedules and `LearningRateScheduler` can keep it so.

    Moving averages that forget old weights are the optimizer's: `use_ema=True`, with Keras' `SwapEMAWeights`.

    The average is part of backups. It is the same on any number of replicas, as far as the weights are.

    Args:
        start_from_epoch: int; the first epoch, counted from 0, whose weights count.
        every: "epoch", or an int, to count the weights after every that many steps, from the start of that epoch on.

    Attributes:
        count: int; how many weights were averaged.

    Raises:
        ValueError: an argument is wrong, the optimizer has `use_ema=True`, or layers need data that cannot be read again.

    Source: Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization", algorithm 1.

    Examples:
        >>> average = unisono.callbacks.StochasticWeightAveraging(start_from_epoch=1)
        >>> history = model.fit(x, y, epochs=3, verbose=0, callbacks=[average])
    """

    model: Any

    def __init__(self, start_from_epoch: int = 0, every: int | str = "epoch") -> None:
        super().__init__()
        self.start_from_epoch = whole_number("start_from_epoch", start_from_epoch, least=0)
        self._schedule = SaveSchedule.parse(whole_number("every", every, words=("epoch",)))
        self._forget()

    def _forget(self) -> None:
        self.count = 0
        self._sums: list[np.ndarray] = []
        self._steps = self._seen = 0

    def steps_until_call(self, step: int) -> int | None:
        """Request a call after every that many steps."""
        begun = self.model.fit_state.epoch >= self.start_from_epoch
        return self._schedule.steps_until_call(self._steps + step) if begun else None

    def get_state(self) -> dict[str, Any]:
        """Return the sums of the weights, for backups."""
        return {"count": self.count, "sums": self._sums, "steps": self._steps, "seen": self._seen}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sums, on resume."""
        self.count, self._steps, self._seen = state["count"], state["steps"], state["seen"]
        self._sums = [np.array(each) for each in state["sums"]]

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin anew, and reject a model that cannot be averaged."""
        if getattr(self.model, "fit_state", None) is None:
            raise ValueError(
                "`StochasticWeightAveraging` needs the `fit` of a Unisono model: call `unisono.adopt(model)` first."
            )
        optimizer = self.model.optimizer
        if getattr(getattr(optimizer, "inner_optimizer", optimizer), "use_ema", False):
            raise ValueError(
                "`StochasticWeightAveraging` and an optimizer with use_ema=True both set the weights when training ends: "
                "use one of them."
            )
        if (layers := self._layers()) and self.model.fit_state.why_no_pass:
            raise ValueError(
                "`StochasticWeightAveraging` computes the statistics of `BatchNormalization` layers in an additional "
                f"pass over the data, but {self.model.fit_state.why_no_pass}. Received: the layer {layers[0].name!r}"
            )
        self._forget()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the weights where that is due."""
        if self.model.fit_state.epoch >= self.start_from_epoch:
            due = self._schedule.due(self._steps + batch + 1, self._steps + self._seen)
            self._seen = batch + 1
            if due:
                self._add()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the weights after an epoch."""
        if epoch < self.start_from_epoch:
            return
        self._steps, self._seen = self._steps + self.model.fit_state.step, 0
        if self._schedule.unit == "epoch":
            self._add()

    def on_train_end(self, logs: Any = None) -> None:
        """Set the average, and the statistics that belong to it."""
        if not self.count:
            warnings.warn(
                "`StochasticWeightAveraging` averaged nothing, because training ended before its `start_from_epoch` "
                f"({self.start_from_epoch}): the weights are the last ones. Set an earlier epoch."
            )
            return
        self._set_means(self.model.trainable_weights, self._sums, self.count)
        if layers := self._layers():
            variables = [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]
            sums, steps = [np.zeros(v.shape, np.float64) for v in variables], 0
            of_one_batch = share_attributes("momentum", [(layer, lambda _: 0.0) for layer in layers])
            with of_one_batch:
                for steps in self.model.fit_state.forward_pass():  # noqa: B007
                    _add_to(sums, variables)
            self._set_means(variables, sums, steps)

    def _add(self) -> None:
        weights = self.model.trainable_weights
        self._sums = self._sums or [np.zeros(weight.shape, np.float64) for weight in weights]
        _add_to(self._sums, weights)
        self.count += 1

    def _layers(self) -> list[Any]:
        kind = keras.layers.BatchNormalization
        return [each for each in layers_of(self.model) if isinstance(each, kind) and each.trainable]

    def _set_means(self, variables: list[Any], sums: list[np.ndarray], count: int) -> None:
        with self.model._strategy_scope():
            for variable, total in zip(variables, sums, strict=True) if count else ():
                variable.assign((total / count).astype(variable.dtype))


def _add_to(sums: list[np.ndarray], variables: list[Any]) -> None:
    for total, variable in zip(sums, variables, strict=True):
        total += variable.numpy()
