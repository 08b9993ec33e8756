"""How long TensorFlow spends optimizing the graphs of large models."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context

import unisono
from unisono.compat.tensorflow_graphs.graph_optimizer import optimize_briefly
from unisono.trainer.run.loops import step_function


def rewriter():
    config = ConfigProto.FromString(context.context().function_call_options.config_proto_serialized)
    return config.graph_options.rewrite_options


@pytest.fixture
def experimental_options():
    before = tf.config.optimizer.get_experimental_options()
    yield tf.config.optimizer.set_experimental_options
    tf.config.optimizer.set_experimental_options(before or {"disable_meta_optimizer": False})


def test_one_round_inside_and_everything_as_before_after_it():
    usual = context.context().function_call_options
    with optimize_briefly():
        assert rewriter().meta_optimizer_iterations == RewriterConfig.ONE
        assert rewriter().memory_optimization == RewriterConfig.NO_MEM_OPT
        assert rewriter().disable_tfg_optimizer
        inside = context.context().function_call_options
    assert context.context().function_call_options is usual
    with pytest.raises(ValueError), optimize_briefly():
        # otherwise a graph would be optimized at each call
        assert context.context().function_call_options is inside
        raise ValueError
    assert context.context().function_call_options is usual


def test_what_the_user_has_set_stays(experimental_options):
    experimental_options({"layout_optimizer": True, "constant_folding": False})
    with optimize_briefly():
        assert rewriter().layout_optimizer == RewriterConfig.ON
        assert rewriter().constant_folding == RewriterConfig.OFF
        experimental_options({"constant_folding": True})
    assert rewriter().constant_folding == RewriterConfig.ON


def test_large_models_alone_are_optimized_briefly(monkeypatch):
    rounds = []

    inner = step_function.optimize_briefly
    monkeypatch.setattr(step_function, "optimize_briefly", lambda: rounds.append(1) or inner())
    for layers, briefly in ((2, False), (60, True)):
        rounds.clear()
        model = unisono.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(layers))])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 4)), batch_size=4, verbose=0)
        assert bool(rounds) == briefly
