"""Builds the models with Keras, for Unisono, TensorFlow and Keras on JAX."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from .task import Size, Task


def build(task: Task, model_class: Any = None) -> keras.Model:
    """A new model that gives logits; its last layer computes in float32 under every policy."""
    parts = {"mlp": _mlp, "resnet50": _resnet, "gpt2": transformer, "bert": transformer}
    inputs, outputs = parts[task.model](task.size, task.model == "gpt2")
    return (model_class or keras.Model)(inputs, outputs)


def _mlp(size: Size, causal: bool) -> tuple[Any, Any]:
    inputs = x = keras.Input(size.inputs)
    for _ in range(size.blocks[0]):
        x = layers.Dense(size.width, activation="relu")(x)
    return inputs, layers.Dense(size.classes, dtype="float32")(x)


def _resnet(size: Size, causal: bool) -> tuple[Any, Any]:
    """He et al. 2016, "Deep Residual Learning", table 1, bottleneck blocks, the stride in the second convolution."""
    inputs = keras.Input(size.inputs)
    x = _convolved(inputs, size.width, 7, 2)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate(size.blocks):
        width = size.width * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            shortcut = x if block else _convolved(x, 4 * width, 1, stride, activation=None)
            y = _convolved(x, width, 1)
            y = _convolved(y, width, 3, stride)
            y = _convolved(y, 4 * width, 1, activation=None)
            x = layers.ReLU()(layers.Add()([shortcut, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return inputs, layers.Dense(size.classes, dtype="float32")(x)


def _convolved(x: Any, filters: int, kernel: int, stride: int = 1, activation: str | None = "relu") -> Any:
    x = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if activation else x


class Embedded(layers.Layer):
    """Words and their positions."""

    def __init__(self, words: int, places: int, width: int) -> None:
        super().__init__()
        self.words = layers.Embedding(words, width)
        self.places = self.add_weight(shape=(places, width), name="places")

    def call(self, tokens: Any) -> Any:
        """The sum of both embeddings."""
        return self.words(tokens) + keras.ops.cast(self.places, self.compute_dtype)


def transformer(size: Size, causal: bool) -> tuple[Any, Any]:
    """Normalization before each part and a causal mask (GPT-2), or after each and no mask (BERT)."""
    inputs = keras.Input(size.inputs, dtype="int32")
    x = Embedded(size.classes, size.inputs[0], size.width)(inputs)
    for _ in range(size.blocks[0]):
        y = layers.LayerNormalization()(x) if causal else x
        attention = layers.MultiHeadAttention(size.heads, size.width // size.heads)
        x = x + attention(y, y, use_causal_mask=causal)
        x = x if causal else layers.LayerNormalization()(x)
        y = layers.LayerNormalization()(x) if causal else x
        x = x + layers.Dense(size.width)(layers.Dense(4 * size.width, activation="gelu")(y))
        x = x if causal else layers.LayerNormalization()(x)
    if causal:
        x = layers.LayerNormalization()(x)
    return inputs, layers.Dense(size.classes, dtype="float32")(x)
