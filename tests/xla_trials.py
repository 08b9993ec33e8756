"""For tests of the choice between the graph and XLA: times that the test sets, the plan of a fit, a fit that ends early."""

import keras
import pytest

from unisono.trainer.run.loops.compiled import GRAPH, XLA
from unisono.trainer.run.xla import xla_choice
from unisono.trainer.run.xla.xla_choice import XlaChoice


def try_eagerly(monkeypatch: pytest.MonkeyPatch, fewest_steps: int) -> dict[str, float]:
    """Tries XLA in whatever has `fewest_steps`, whatever it costs; gives the seconds of a step of each way, to be set."""
    clock = {GRAPH: 200e-6, XLA: 30e-6}
    monkeypatch.setattr("unisono.trainer.run.loops.sample_layouts.FEWEST_STEPS", fewest_steps)
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
    """Ends the fit where an epoch begins, as a crash would."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Stop
