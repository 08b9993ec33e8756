"""Builds the three models for any package with Keras' API (`keras`, `tf_keras`)."""

from __future__ import annotations

from typing import Any

from .task import CLASSES, FEATURES, HEADS, SIDE, TOKENS, WIDTH, WORDS, Task


def build(keras: Any, task: Task, model_class: Any = None) -> Any:
    """The model of `task`, with logits `(batch, 10)`.

    Args:
        keras: the package, or one with `layers`, `Model`, `Input`.
        task: selects the model.
        model_class: the class of the model; None: `keras.Model`.
    """
    inputs, hidden = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}[task.model](keras, task)
    outputs = keras.layers.Dense(CLASSES)(hidden)
    return (model_class or keras.Model)(inputs, outputs)


def compile_arguments(keras: Any) -> dict[str, Any]:
    """The optimizer, loss and metric of every `fit`."""
    return {
        "optimizer": keras.optimizers.Adam(1e-3),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }


def _mlp(keras: Any, task: Task) -> Any:
    inputs = h = keras.Input((FEATURES,))
    for _ in range(task.layers):
        h = keras.layers.Dense(WIDTH, activation="relu")(h)
    return inputs, h


def _cnn(keras: Any, task: Task) -> Any:
    first = keras.backend.image_data_format() == "channels_first"
    inputs = h = keras.Input((1, SIDE, SIDE) if first else (SIDE, SIDE, 1))
    for filters in (32, 64):
        h = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(h)
        h = keras.layers.MaxPooling2D()(h)
    return inputs, keras.layers.Flatten()(h)


def _transformer(keras: Any, task: Task) -> Any:
    inputs = keras.Input((TOKENS,), dtype="int32")
    h = keras.layers.Embedding(WORDS, WIDTH)(inputs)
    for _ in range(2):
        n = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(n, n)
        n = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.Dense(WIDTH)(keras.layers.Dense(4 * WIDTH, activation="relu")(n))
    return inputs, keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(h))
