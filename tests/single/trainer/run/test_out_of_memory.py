"""When a training step runs out of memory, the error explains what uses it and how to reduce it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import mirrored

import unisono
from unisono.trainer.run import passes

X = np.ones((64, 8), "float32")


class NoMemory(keras.callbacks.Callback):
    """The GPU is full from the second compiled call on."""

    def on_train_begin(self, logs=None):
        self.function, self.calls = self.model.train_function, 0
        self.model.train_function = self

    def on_train_end(self, logs=None):
        self.model.train_function = self.function

    def __call__(self, *arguments):
        self.calls += 1
        if self.calls == 2:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return self.function(*arguments)

    def __getattr__(self, name):
        if "function" not in vars(self):
            raise AttributeError(name)
        return getattr(self.function, name)


def compiled(strategy):
    with strategy.scope():
        layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(4)]
        model = unisono.Sequential([keras.Input((8,)), *layers])
        model.compile(unisono.optimizers.Adam(), "mse")
    return model


def test_error_tells_sizes_and_what_would_help():
    model = compiled(tf.distribute.get_strategy())
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        model.fit(X, X[:, :4], batch_size=32, epochs=2, verbose=0, callbacks=[NoMemory()])
    (note,) = [note for note in caught.value.__notes__ if "Memory" in note]
    # 212 values; two for each, and a few counters.
    assert "gradients 848 bytes, optimizer state 2 KiB" in note
    assert "sharded" not in note  # with one replica
    assert "smaller batch" in note and "half_precision (" in note and "Pipeline" in note


def test_activations_grow_with_a_replicas_samples_and_weights_do_not(monkeypatch):
    needs = []
    real = passes.memory_of
    monkeypatch.setattr(passes, "memory_of", lambda *sizes: needs.append(real(*sizes)) or needs[-1])
    rows = (16, 32, 32)
    for strategy, batch in zip(
        (tf.distribute.get_strategy(), tf.distribute.get_strategy(), mirrored(2)), rows
    ):
        model = compiled(strategy)
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            model.fit(X, X[:, :4], batch_size=batch, epochs=2, verbose=0, callbacks=[NoMemory()])
    assert len({(need.weights, need.trained, need.optimizer_state) for need in needs}) == 1
    small, large, shared = (need.activations * samples for need, samples in zip(needs, (16, 32, 16)))
    assert small >= 16 * (8 + 16) * 4, "the inputs of both layers are kept"
    assert 1.8 * small <= large <= 2.2 * small
    assert 0.8 * small <= shared <= 1.3 * small
    (note,) = [note for note in caught.value.__notes__ if "Memory" in note]
    assert "with 16 samples" in note and "sharded optimizer (" in note, "on two replicas"


def test_what_is_done_already_is_not_advised():
    strategy = mirrored(2)
    unisono.distribute.sharded(strategy, level="weights")
    model = compiled(strategy)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        model.fit(X, X[:, :4], batch_size=32, epochs=2, verbose=0, callbacks=[NoMemory()])
    (note,) = [note for note in caught.value.__notes__ if "Memory" in note]
    assert "; sharded optimizer (" not in note


def test_note_on_a_mesh_has_the_bytes_of_parts():
    devices = [f"cpu:{number}" for number in range(4)]
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices))
    layouts[".*kernel"] = (None, "model")
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    model = compiled(unisono.distribute.sharded(unisono.distribute.strategy_of(distribution)))
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        model.fit(X, X[:, :4], batch_size=32, epochs=2, verbose=0, callbacks=[NoMemory()])
    (note,) = [note for note in caught.value.__notes__ if "Memory" in note]
    # Half of both kernels (192 values) and both biases (20), and a quarter of the kernels' and half of the biases' state.
    state = 4 * 2 * (192 // 4 + 20 // 2)
    assert "16 samples on the mesh {'batch': 2, 'model': 2}: weights 464 bytes" in note
    assert f"optimizer state {state}" in note or f"optimizer state {state + 12}" in note
