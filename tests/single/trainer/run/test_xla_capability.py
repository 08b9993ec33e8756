"""Cards that XLA cannot compile for: it would end the process, so that steps stay in the plain graph."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from xla_trials import take_for_gpus

import unisono
from unisono.distribute.hardware import devices
from unisono.trainer.run.fit_loop import Runner
from unisono.trainer.run.xla import xla_rule

X = np.ones((4, 3), "float32")


@pytest.fixture
def pretend(monkeypatch):
    """`pretend(capabilities, cuda)`: TensorFlow describes such cards, and is built with this CUDA."""

    def describe(capabilities, cuda="12.5.1"):
        details = [{"compute_capability": each} if each else {} for each in capabilities]
        monkeypatch.setattr(devices, "gpu_details", lambda: details)
        monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"cuda_version": cuda} if cuda else {})

    return describe


def model_of(**how):
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **how)
    return model


@pytest.mark.parametrize(
    "capabilities, cuda, aborts",
    [
        ([(12, 0)], "12.5.1", True),
        ([(9, 0), (12, 1)], "12.5.1", True),
        ([(10, 0)], "12.6", True),
        ([(12, 0)], "12.8.0", False),
        ([(12, 0)], "13.0", False),
        ([(9, 0), None], "12.5.1", False),
        ([(12, 0)], None, False),
        ([], "12.5.1", False),
    ],
)
def test_capability_and_cuda_decide(pretend, capabilities, cuda, aborts):
    pretend(capabilities, cuda)
    reason = devices.why_xla_aborts()
    assert (reason is not None) == aborts
    assert not aborts or ("CUDA 12.8 or newer" in reason and f"CUDA {cuda}" in reason)


@pytest.mark.parametrize("jit_compile", [True, "auto"])
def test_steps_stay_in_the_plain_graph_with_one_warning(pretend, monkeypatch, jit_compile):
    pretend([(12, 0)])
    with pytest.warns(UserWarning, match=r"plain graph.*capability 12\.0.*CUDA 12\.8") as caught:
        model = model_of(jit_compile=jit_compile)
    assert len(caught) == 1 and not model.jit_compile
    model.fit(X, X[:, :1], verbose=0)
    function = Runner().make_function(model, "train")
    take_for_gpus(monkeypatch)
    reason = xla_rule._reason_before_tracing(function, None, 10_000)
    assert reason == "`jit_compile=False`" if jit_compile is True else "CUDA 12.8" in reason


def test_other_models_are_compiled_without_a_warning(pretend):
    pretend([(9, 0)])
    assert model_of(jit_compile=True).jit_compile
    pretend([(12, 0)])
    assert not model_of(jit_compile=False).jit_compile
