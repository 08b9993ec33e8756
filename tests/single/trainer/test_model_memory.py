"""The memory for training is computed from the model's graph, and `python -m unisono plan` recommends how to fit it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from peak_memory import PeakMemory

import unisono
from unisono.commands.plan import main

NUMBER = 4  # bytes


def mlp(cls=keras.Sequential, optimizer="adam"):
    model = cls([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(4)])
    model.compile(optimizer, "mse")
    return model


def test_bytes_of_a_small_model_are_those_counted_manually():
    memory = unisono.model_memory(mlp())
    weights = NUMBER * (9 * 16 + 17 * 4)
    assert (memory.weights, memory.trained, memory.largest_layer) == (weights, weights, NUMBER * 9 * 16)
    state = 2 * weights + NUMBER + 8  # two for each weight, the learning rate and the count
    assert memory.optimizer_state == state
    # The inputs of both layers, one of them the output of relu, and the difference in the loss.
    kept = 8 + 16 + 4
    assert memory.activations == NUMBER * kept


def test_nothing_of_the_model_changes():
    model = mlp(unisono.Sequential)
    before = [*model.get_weights()]
    unisono.model_memory(model)
    assert not model.optimizer.built and model.losses == []
    np.testing.assert_equal(model.get_weights(), before)
    assert np.isfinite(model.fit(np.ones((8, 8)), np.ones((8, 4)), verbose=0).history["loss"]).all()


def test_optimizer_state_are_those_of_the_optimizer():
    none, one = (
        unisono.model_memory(mlp(optimizer=keras.optimizers.SGD(0.1, momentum=m))).optimizer_state
        for m in (0.0, 0.9)
    )
    assert none < 20 and one - none == NUMBER * (9 * 16 + 17 * 4)


def test_rounds_of_a_loop_are_counted():
    def kept(steps):
        inputs = keras.Input((steps, 3))
        model = keras.Model(inputs, keras.layers.SimpleRNN(5)(inputs))
        return unisono.model_memory(model).activations

    assert kept(100) - kept(50) >= 50 * 5 * NUMBER, "the state of every step"
    assert kept(100) - kept(50) <= 50 * 30 * NUMBER


def test_half_precision_and_models_that_know_no_inputs():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(dtype="mixed_bfloat16")
            self.dense = keras.layers.Dense(4, dtype="mixed_bfloat16")

        def call(self, x):
            return self.dense(x)

    with pytest.raises(ValueError, match="`x` is missing"):
        unisono.model_memory(Own())
    model = Own()
    memory = unisono.model_memory(model, np.ones((2, 6), "float32"), np.ones((2, 4), "float32"))
    assert memory.half_precision and memory.weights == NUMBER * 7 * 4


def test_length_that_the_model_leaves_open_is_asked_for():
    texts = keras.Input((None,), dtype="int32")
    model = unisono.Model(texts, keras.layers.Dense(1)(keras.layers.Embedding(9, 4)(texts)))
    with pytest.raises(ValueError, match=r"the shape \(None, None\) leaves open: pass a batch as `x`"):
        unisono.model_memory(model)
    short, long = (
        unisono.model_memory(model, tf.TensorSpec((None, n), "int32")).activations for n in (10, 30)
    )
    assert long == 3 * short


def test_sparse_targets_several_outputs_and_named_inputs():
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    both = keras.layers.Concatenate()(list(inputs.values()))
    outputs = [keras.layers.Dense(3, name="classes")(both), keras.layers.Dense(1, name="value")(both)]
    model = unisono.Model(inputs, outputs)
    model.compile("sgd", [keras.losses.SparseCategoricalCrossentropy(from_logits=True)] * 2)
    assert unisono.model_memory(model).activations >= 8 * NUMBER


def test_command_plans_what_no_memory_here_would_hold(tmp_path, capsys):
    source = tmp_path / "many_weights.py"
    source.write_text(
        "import keras\n\n\ndef make_model():\n"
        "    layers = [keras.layers.Dense(50_000, use_bias=False) for _ in range(4)]\n"
        "    model = keras.Sequential([keras.Input((50_000,)), *layers])\n"
        '    model.compile("adam", "mse")\n    return model\n'
    )
    peak = PeakMemory(["CPU:0"])
    before = peak.most()
    assert main([f"{source}:make_model", "-b", "256", "-n", "8", "-m", "80GiB"]) == 0
    assert peak.most() - before < 2**30
    printed = capsys.readouterr().out
    assert "37.3 GiB" in printed and "149.0 GiB" in printed and "too much" in printed
    assert "sharded optimizer" in printed
    assert main([f"{source}:make_model", "-b", "1", "-m", "80GiB"]) == 1
    assert "It does not fit" in capsys.readouterr().out


@pytest.mark.parametrize("batch", [("a",), ([None],), ([[1.0, 2.0]],), (np.ones((2, 6)), "a")])
def test_batch_that_is_no_array_is_named(batch):
    with pytest.raises(TypeError, match=r"`x` and `y` must be arrays, .* Received: ('a'|None|1\.0)"):
        unisono.model_memory(mlp(), *batch)
