"""Every weight of Keras' layers in parts along each axis that divides, with gradients, against one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from mesh_in_parts import MeshParts

from unisono.distribute.step_context import StepContext, step_scope

L = keras.layers
R = np.random.default_rng(5)
ROWS, SEQUENCES = R.normal(size=(7, 4)), R.normal(size=(7, 4, 4))
IMAGES, VOLUMES = R.normal(size=(7, 4, 4, 4)), R.normal(size=(7, 4, 4, 4, 2))
NUMBERS = R.integers(0, 6, (7, 4)).astype("int32")
LAYERS = {
    "dense": (lambda: L.Dense(6, "relu"), ROWS),
    "dense of sequences": (lambda: L.Dense(6, "softmax"), SEQUENCES),
    "einsum dense": (lambda: L.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de"), SEQUENCES),
    "attention": (lambda: SelfAttention(L.MultiHeadAttention(2, 4)), SEQUENCES),
    "grouped attention": (lambda: SelfAttention(L.GroupQueryAttention(4, 4, 2)), SEQUENCES),
    "attention in blocks": (lambda: InBlocks(L.MultiHeadAttention(2, 4, flash_attention=True)), SEQUENCES),
    "embedding": (lambda: L.Embedding(6, 4), NUMBERS),
    "convolution 1": (lambda: L.Conv1D(4, 2, padding="same"), SEQUENCES),
    "convolution 2": (lambda: L.Conv2D(4, 3, strides=2), IMAGES),
    "convolution in groups": (lambda: L.Conv2D(4, 3, groups=2), IMAGES),
    "convolution 3": (lambda: L.Conv3D(2, 2), VOLUMES),
    "depthwise": (lambda: L.DepthwiseConv2D(2, depth_multiplier=2), IMAGES),
    "separable": (lambda: L.SeparableConv2D(4, 2), IMAGES),
    "transposed": (lambda: L.Conv2DTranspose(4, 2, strides=2), IMAGES),
    "layer norm": (lambda: L.LayerNormalization(), SEQUENCES),
    "rms norm": (lambda: L.RMSNormalization(), SEQUENCES),
    "group norm": (lambda: L.GroupNormalization(2), IMAGES),
    "batch norm": (lambda: L.BatchNormalization(), IMAGES),
    "lstm": (lambda: L.LSTM(4), SEQUENCES),
    "gru": (lambda: L.GRU(4), SEQUENCES),
    "bidirectional": (lambda: L.Bidirectional(L.SimpleRNN(2)), SEQUENCES),
    "prelu": (lambda: L.PReLU(), SEQUENCES),
}


class SelfAttention(keras.layers.Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def build(self, shape):
        self.inner.build(shape, shape)

    def call(self, x):
        return self.inner(x, x, use_causal_mask=True)


class InBlocks(SelfAttention):
    def call(self, x):
        with step_scope(StepContext(0, 1, 1, 1)):
            return super().call(x)


def built(name):
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    make, data = LAYERS[name]
    layer = make()
    layer.build(data.shape)
    return layer, data


def step_of(name):
    """A layer's outputs, a loss and its gradients as a function of a batch and of weights; the batch and the weights."""
    layer, data = built(name)
    rest = [tf.constant(v.numpy()) for v in layer.non_trainable_variables]

    def fn(x, *weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            out, _ = layer.stateless_call(list(weights), rest, x)
            loss = tf.reduce_mean(out**2) + tf.reduce_sum(tf.sin(out))
        return [out, loss, *[tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]]

    return fn, data, [v.numpy() for v in layer.trainable_variables]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.long
def test_layer_with_a_divided_weight_matches_one_device(name):
    fn, data, start = step_of(name)
    cases = [(n, axis) for n, w in enumerate(start) for axis, size in enumerate(w.shape) if size % 2 == 0]
    assert cases
    for number, axis in cases:
        weights = [(w, axis if n == number else None) for n, w in enumerate(start)]
        MeshParts(fn, [data], weights).check([(4, 3)], tolerance=1e-11)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.long
def test_layer_with_all_weights_divided_along_both_axes_matches_one_device(name):
    """By pairs of axes in both orders; uneven parts of the batch, and one without samples."""
    fn, data, start = step_of(name)
    for order in (1, -1):
        weights = []
        for w in start:
            axes = [axis for axis, size in enumerate(w.shape) if size % 2 == 0][::order]
            weights.append((w, (axes[0] if axes else None, axes[1] if len(axes) > 1 else None)))
        MeshParts(fn, [data], weights, again=True).check([(4, 3), (7, 0)], tolerance=1e-11)
