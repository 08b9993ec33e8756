"""For tests of the choice between graph mode and XLA: times set by the test, a fit's plan, a fit that ends early."""

import keras
import pytest

from unisono.trainer.run.loops.compiled import GRAPH, XLA
from unisono.trainer.run.xla import xla_choice
from unisono.trainer.run.xla.xla_choice import XlaChoice


def try_eagerly(monkeypatch: pytest.MonkeyPatch, fewest_steps: int) -> dict[str, float]:
    """Tries XLA for anything with at least `fewest_steps`, at any cost; returns the seconds per step by mode, to be set."""
    clock = {GRAPH: 200e-6, XLA: 30e-6}
    monkeypatch.setattr("unisono.trainer.run.xla.xla_choice.FEWEST_STEPS", fewest_steps)
    monkeypatch.setattr(xla_choice, "WORTH", 0.0)
    note = XlaChoice.note
    monkeypatch.setattr(
        XlaChoice,
        "note",
        lambda self, execution, steps, seconds: note(
            self, execution, steps, steps * clock[self._function.backend]
        ),
    )
    return clock


class Plan(keras.callbacks.Callback):
    """Keeps the plan of the fit."""

    def on_train_begin(self, logs=None):
        self.plan = self.model.fit_state.plan


class Stop(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    """Ends the fit at the start of an epoch, as a crash would."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Stop
