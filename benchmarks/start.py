"""Measures the time from `fit` to the end of the first step, relative to Keras 3."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import unisono
from benchmarks.tables import publish, spread

WIDTH, HEADS, BLOCKS, WORDS, TOKENS, BATCH = 768, 12, 12, 30_522, 32, 4


def encoder(model_class: Any) -> Any:
    """An encoder of transformer blocks with the layers of BERT-base."""
    words, kinds = keras.Input((TOKENS,), dtype="int32"), keras.Input((TOKENS,), dtype="int32")
    h = keras.layers.Embedding(WORDS, WIDTH)(words) + keras.layers.Embedding(2, WIDTH)(kinds)
    h = keras.layers.Dropout(0.1)(keras.layers.LayerNormalization()(h))
    for _ in range(BLOCKS):
        seen = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1)(h, h)
        h = keras.layers.LayerNormalization()(h + keras.layers.Dropout(0.1)(seen))
        inner = keras.layers.Dense(4 * WIDTH, activation="gelu")(h)
        inner = keras.layers.Dropout(0.1)(keras.layers.Dense(WIDTH)(inner))
        h = keras.layers.LayerNormalization()(h + inner)
    pooled = keras.layers.Dense(WIDTH, activation="tanh")(h[:, 0])
    return model_class([words, kinds], keras.layers.Dense(2)(pooled))


def resnet(model_class: Any) -> Any:
    """ResNet-50 for small images."""
    made = keras.applications.ResNet50(weights=cast(Any, None), input_shape=(64, 64, 3), classes=10)
    return model_class(made.inputs, keras.layers.Dense(10)(made.layers[-2].output))


MODELS = {"ResNet-50": resnet, "encoder of 12 blocks": encoder}


def data(name: str) -> tuple[Any, Any]:
    """Samples for four steps."""
    samples = 4 * BATCH
    if name == "ResNet-50":
        return np.zeros((samples, 64, 64, 3), "float32"), np.zeros(samples, "int64")
    return [np.zeros((samples, TOKENS), "int32")] * 2, np.zeros(samples, "int64")


class First(keras.callbacks.Callback):
    """Records the end of the first step and stops training."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reads the clock."""
        self.ended = time.perf_counter()
        model: Any = self.model
        model.stop_training = True


CONTESTANTS = ((unisono.Model, "auto"), (keras.Model, "auto"), (keras.Model, False))


def begin(name: str, strategy: Any, model_class: Any, jit_compile: Any) -> tuple[float, int]:
    """Seconds from `fit` to the end of a new model's first step, and the nodes of a Unisono graph."""
    keras.backend.clear_session()
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = MODELS[name](model_class)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"], jit_compile=jit_compile)
    x, y = data(name)
    first, began = First(), time.perf_counter()
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[first])
    nodes = 0
    if isinstance(model, unisono.Model):
        function: Any = model.train_function
        definition = function.graph().as_graph_def(add_shapes=False)
        nodes = len(definition.node) + sum(len(each.node_def) for each in definition.library.function)
    return first.ended - began, nodes


def main(rounds: int = 3, names: Sequence[str] = tuple(MODELS)) -> None:
    """Prints a table: `python -m benchmarks.start [ROUNDS] [MODEL ...]`.

    The models are a ResNet-50 and an encoder of BERT's size on short inputs, on one device and on two replicas. In
    each round, a new Unisono model begins a fit in the same process as two new Keras models, one with XLA (the
    default) and one without. The table has the medians and quartiles of the seconds, the median ratios, and the
    number of nodes of the graph.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    two = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"]
    )  # a second strategy would give plain Keras keys that are in use
    rows = []
    for name in names:
        for replicas in (1, 2):
            strategy = two if replicas == 2 else None
            turns = [
                {each: begin(name, strategy, *each) for each in CONTESTANTS[:: 1 if turn % 2 else -1]}
                for turn in range(rounds)
            ]
            ours, compiled, plain = ([turn[each] for turn in turns] for each in CONTESTANTS)
            row = [f"{name}, {replicas} replica{'s' * (replicas > 1)}"]
            row += [spread([each[0] for each in found], 1, "{:.1f}") for found in (ours, compiled, plain)]
            for theirs in (compiled, plain):
                row.append(f"{statistics.median(a[0] / b[0] for a, b in zip(ours, theirs)):.2f}")
            row.append(f"{ours[0][1]:,}")
            rows.append(row)
            print(" ".join(row), flush=True)
    head = [
        "first step of",
        "`unisono`, s",
        "Keras 3, s",
        "Keras 3 without XLA, s",
        "ratio",
        "ratio without XLA",
    ]
    publish("start", [*head, "nodes of the graph, `unisono`"], rows)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["3"])[0]), sys.argv[2:] or tuple(MODELS))
