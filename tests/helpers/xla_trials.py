"""For tests of the backend: the rule forced to one of them, a fit that ends early."""

from types import ModuleType

import keras
import pytest

from unisono.trainer.run.loops.compiled import GRAPH
from unisono.trainer.run.xla import xla_rule


def force_backend(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Let the rule select this backend, whatever the device and the number of steps; what a step contains still counts."""
    reason = "the test says so" if backend == GRAPH else None
    monkeypatch.setattr(xla_rule, "_reason_before_tracing", lambda *args: reason)


def take_for_gpus(
    monkeypatch: pytest.MonkeyPatch, name: str = "", modules: tuple[ModuleType, ...] = (xla_rule,)
) -> None:
    """Let modules, first of all the rule, take devices for GPUs whose names end so."""
    for module in modules:
        monkeypatch.setattr(module, "is_gpu", lambda device: device.endswith(name))


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
