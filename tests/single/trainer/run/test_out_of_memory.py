"""When a training step runs out of memory, the error explains what uses it and how to reduce it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import mirrored

import unisono

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


def note_of(strategy):
    model = compiled(strategy)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        model.fit(X, X[:, :4], batch_size=32, epochs=2, verbose=0, callbacks=[NoMemory()])
    (note,) = [note for note in caught.value.__notes__ if "Memory" in note]
    return note


def test_error_tells_sizes_and_what_would_help():
    note = note_of(tf.distribute.get_strategy())
    # 212 values; two for each, and a few counters.
    assert "with 32 samples: weights 8" in note and "optimizer state 2 KiB" in note
    assert "sharded" not in note  # with one replica
    assert "a smaller batch" in note and "half-precision" in note and "Pipeline" in note


def test_replicas_can_divide_their_state():
    note = note_of(mirrored(2))
    assert "with 16 samples" in note
    assert (
        '`unisono.distribute.sharded(strategy)`; `unisono.distribute.sharded(strategy, level="weights")`'
        in note
    )


def test_what_is_done_already_is_not_advised():
    note = note_of(unisono.distribute.sharded(mirrored(2), level="weights"))
    assert "sharded(" not in note
    note = note_of(unisono.distribute.sharded(mirrored(2)))
    assert "sharded(strategy)" not in note and 'level="weights"' in note
    assert f"optimizer state {4 * 2 * 212 // 2} bytes" in note or "optimizer state 8" in note, "a half of it"
    keras.config.set_dtype_policy("mixed_bfloat16")
    with keras.RematScope("full"):
        note = note_of(tf.distribute.get_strategy())
    assert "half-precision" not in note and "RematScope" not in note


def test_pipeline_tells_what_all_stages_take():
    pipeline = unisono.distribute.Pipeline(["CPU:0", "CPU:1"], micro_batches=2)
    note = note_of(pipeline)
    assert "32 samples (of all stages): weights 8" in note and "Pipeline(rematerialize=True)" in note
    assert "RematScope" not in note and "sharded(" not in note


def test_note_on_a_mesh_has_the_bytes_of_parts():
    devices = [f"cpu:{number}" for number in range(4)]
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices))
    layouts[".*kernel"] = (None, "model")
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    note = note_of(unisono.distribute.sharded(unisono.distribute.strategy_of(distribution)))
    # Half of both kernels (192 values) and both biases (20), and a quarter of the kernels' and half of the biases' state.
    state = 4 * 2 * (192 // 4 + 20 // 2)
    assert "Pipeline" not in note  # which has no mesh within its stages
    assert "16 samples: weights 464 bytes" in note and "more devices along 'model'" in note
    assert "sharded(" not in note
    assert f"optimizer state {state}" in note or f"optimizer state {state + 12}" in note
