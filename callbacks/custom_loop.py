"""Callbacks in custom loops and plain Keras' `fit`, whose hooks show the position."""

import contextlib
import types
import weakref
from typing import Any

import tensorflow as tf

from ..compat.keras_private.training import plain_fit, still_runs
from ..distribute.storage import is_store_url
from ..distribute.workers.cluster import is_chief
from ..optimizers.stages.gradient_watch import GradientWatch, watch_gradients
from ..state.trained_model import FitState
from .callback import Callback


class CustomLoopSupport(Callback):
    """A callback that owns the `FitState` of a loop that is not our `fit`."""

    model: Any
    params: Any
    _custom_state: FitState | None = None
    _plain_fit: weakref.ref[Any] | None = None

    @property
    def _in_fit(self) -> bool:
        """Whether a `fit` of ours calls the hooks."""
        return getattr(self.model, "fit_state", None) is not None

    def _watch_plain_fit(self) -> None:
        """Call `on_fit_exit` if an error ends the `fit` of plain Keras that begins, as Keras calls no hook then."""
        fit = self._plain_fit = None if self._in_fit else plain_fit()
        if not self._in_fit:
            self._reject_store()
        if fit is not None:
            weakref.finalize(fit(), self._plain_fit_ended, fit).atexit = False

    def _reject_store(self) -> None:
        """Raise if the callback would write to a store, and no `Spool` uploads what it writes."""
        place = getattr(self, "path", None) or getattr(self, "log_dir", None)
        if place is not None and is_store_url(place):
            raise ValueError(
                f"`{type(self).__name__}` can write to a store only in `fit` and `evaluate` of a Unisono model. In another "
                f"loop, write to a local path and upload the file. Received: {place}"
            )

    def _plain_fit_ended(self, fit: weakref.ref[Any]) -> None:
        if self._plain_fit is fit:
            self._plain_fit = None
            self.on_fit_exit()

    def _runs(self) -> bool:
        """Return whether the `fit` of plain Keras that has begun still runs; True in other loops, which nothing reports."""
        return self._plain_fit is None or still_runs(self._plain_fit)

    def _fit_state(
        self, epoch: int | None = None, batch: int | None = None, lap: str | None = None
    ) -> FitState:
        """Return the state of the running `fit`; in another loop a state that follows the arguments of the hooks.

        `epoch` begins, `batch` (counted from 0 in its epoch) has ended, and so has the part `lap` of the loop's work.
        """
        if self._in_fit:
            return self.model.fit_state
        given = self.params or {}
        if self._custom_state is None:
            # The user's loop draws its batches, so its input has no position.
            source = types.SimpleNamespace(steps_per_epoch=None, state=dict, restore=lambda state: None)
            self._custom_state = FitState(chief=is_chief(), source=source, custom_loop=True)
        own = self._custom_state
        own.epochs = given.get("epochs") or max(1, own.epoch + 1)
        own.steps_per_epoch = given.get("steps")
        if epoch is not None:
            own.epoch, own.step = epoch, 0
        if batch is not None:
            own.step = batch + 1
        if lap is not None:
            own.times.lap(lap)
        return own

    @property
    def _optimizer(self) -> Any:
        """The model's optimizer; None for a model that was not compiled."""
        return getattr(self.model, "optimizer", None)

    def _watch_gradients(self) -> GradientWatch | None:
        """Return what measures the gradients in the steps, which are compiled anew with it; None where nothing can."""
        optimizer = self._optimizer
        if not (hasattr(optimizer, "gradient_transformers") and getattr(optimizer, "built", False)):
            return None
        with self._scope():
            watch, new = watch_gradients(optimizer)
        if new and self._in_fit:
            self.model.make_train_function(force=True)
        return watch

    def _scope(self) -> Any:
        """Return the scope of the model's strategy; a null context where it is entered already."""
        strategy = self.model.distribute_strategy
        return contextlib.nullcontext() if strategy is tf.distribute.get_strategy() else strategy.scope()
