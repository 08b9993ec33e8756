"""For tests of the backend: the rule forced to one of them, a fit that ends early."""

import keras
import pytest

from unisono.trainer.run.loops.compiled import GRAPH


def force_backend(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Let the rule select this backend, whatever the device and the number of steps; what a step contains still counts."""
    reason = "the test says so" if backend == GRAPH else None
    monkeypatch.setattr("unisono.trainer.run.xla.xla_rule._reason_before_tracing", lambda *args: reason)


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
