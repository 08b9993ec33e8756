"""`fit(fast_dev_run=True)`: one batch of everything, to find a mistake in seconds instead of after an epoch."""

from typing import Any

import keras

from ..state.trained_model import TrainedModel
from .callback import Callback

_WRITES_MODELS = ("ModelCheckpoint", "OrbaxCheckpoint", "BackupAndRestore")


class OneBatch(Callback):
    """Ends the training after one step, and each validation after one."""

    model: TrainedModel

    def on_train_begin(self, logs: Any = None) -> None:
        """Run one step per compiled call, whatever was passed to `compile`."""
        self._steps_per_execution = self.model.steps_per_execution
        self.model.steps_per_execution = 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End the epoch, and with it the training."""
        self.model.stop_training = True

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """End the validation."""
        self.model.stop_evaluating = True

    def on_fit_exit(self) -> None:
        """Restore `steps_per_execution`, also after an error."""
        if hasattr(self, "_steps_per_execution"):
            self.model.steps_per_execution = self._steps_per_execution


def one_batch_of_everything(callbacks: Any) -> list[Any]:
    """Return `OneBatch`, and the callbacks that write no model: one batch must not replace a good checkpoint or backup."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    given = keras.tree.flatten(callbacks or [])
    writers = [c for c in given if any(cls.__name__ in _WRITES_MODELS for cls in type(c).__mro__)]
    return [c for c in given if c not in writers] + [OneBatch()]
