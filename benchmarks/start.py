"""Measures the parts of a first step, next to those of Keras 3 and of a hand-written loop."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import unisono  # isort: skip  # before anything that lists TensorFlow's devices

import keras
import numpy as np
import tensorflow as tf

from benchmarks.step_parts import CALL, LABELLING, REBUILDING, REST, TRACING, Stopwatch, measure_parts
from benchmarks.tables import publish

WIDTH, HEADS, BLOCKS, WORDS, TOKENS, BATCH = 128, 4, 6, 1_000, 64, 4
PARTS = (REST, TRACING, LABELLING, REBUILDING, "compiling", CALL)


def transformer(model_class: Any) -> Any:
    """An encoder with the layers of BERT: normalization after each part, dropout, one class for a sentence."""
    words = keras.Input((TOKENS,), dtype="int32")
    h = keras.layers.Dropout(0.1)(keras.layers.Embedding(WORDS, WIDTH)(words))
    for _ in range(BLOCKS):
        seen = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1)(h, h)
        h = keras.layers.LayerNormalization()(h + keras.layers.Dropout(0.1)(seen))
        inner = keras.layers.Dense(WIDTH)(keras.layers.Dense(4 * WIDTH, activation="gelu")(h))
        h = keras.layers.LayerNormalization()(h + keras.layers.Dropout(0.1)(inner))
    return model_class(words, keras.layers.Dense(10)(h[:, 0]))


def decoder(model_class: Any) -> Any:
    """A decoder with the layers of GPT-2: normalization before each part, a causal mask, the next word."""
    words = keras.Input((TOKENS,), dtype="int32")
    h = keras.layers.Embedding(WORDS, WIDTH)(words)
    for _ in range(BLOCKS):
        n = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(n, n, use_causal_mask=True)
        n = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.Dense(WIDTH)(keras.layers.Dense(4 * WIDTH, activation="gelu")(n))
    return model_class(words, keras.layers.Dense(WORDS)(keras.layers.LayerNormalization()(h)))


def resnet(model_class: Any) -> Any:
    """ResNet-50 for small images."""
    made = keras.applications.ResNet50(weights=cast(Any, None), input_shape=(64, 64, 3), classes=10)
    return model_class(made.inputs, keras.layers.Dense(10)(made.layers[-2].output))


MODELS = {"transformer": transformer, "ResNet-50": resnet, "decoder": decoder}
CONTESTANTS = ("unisono", "hand-written loop", "Keras 3")


class Setting(NamedTuple):
    """What one process measures."""

    model: str
    contestant: str
    replicas: int
    xla: bool


def data(name: str) -> tuple[Any, Any]:
    """Samples for two steps."""
    drawn = np.random.default_rng(0)
    if name == "ResNet-50":
        images = drawn.normal(size=(2 * BATCH, 64, 64, 3)).astype("float32")
        return images, drawn.integers(0, 10, 2 * BATCH)
    words = drawn.integers(0, WORDS, (2 * BATCH, TOKENS + 1)).astype("int32")
    return words[:, :-1], words[:, 1:] if name == "decoder" else words[:, 0] % 10


class First(keras.callbacks.Callback):
    """Stops the watch, and training, after the first step."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Read the clock."""
        self._watch.lap()
        cast(Any, self.model).stop_training = True


def fit(setting: Setting, strategy: Any, watch: Stopwatch) -> Any:
    """Run the first step of `fit`; return what owns the compiled function."""
    with strategy.scope():
        model = MODELS[setting.model](unisono.Model if setting.contestant == "unisono" else keras.Model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=setting.xla)
    x, y = data(setting.model)
    watch.start()
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[First(watch)])
    return model


def loop(setting: Setting, strategy: Any, watch: Stopwatch) -> Any:
    """Run the first step of a hand-written loop; return it. On several replicas, XLA compiles the gradients alone."""
    with strategy.scope():
        model = MODELS[setting.model](keras.Model)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer: Any = keras.optimizers.Adam(1e-4)
    x, y = data(setting.model)
    watch.start()
    with strategy.scope():
        optimizer.build(model.trainable_variables)
    samples = BATCH // setting.replicas

    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss: Any = loss_of(y, model(x, training=True))
            loss = loss / setting.replicas
        return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])

    compiled = setting.xla and setting.replicas > 1
    take = tf.function(gradients, autograph=False, jit_compile=True) if compiled else gradients

    def of_replica(x: Any, y: Any) -> Any:
        context: Any = tf.distribute.get_replica_context()
        first = context.replica_id_in_sync_group * samples
        loss, found = take(x[first : first + samples], y[first : first + samples])
        optimizer.apply_gradients(zip(found, model.trainable_variables))
        return loss

    @tf.function(autograph=False, jit_compile=setting.xla and setting.replicas == 1)
    def step(x: Any, y: Any) -> Any:
        if setting.replicas == 1:
            loss, found = gradients(x, y)
            optimizer.apply_gradients(zip(found, model.trainable_variables))
            return loss
        return strategy.reduce("SUM", strategy.run(of_replica, args=(x, y)), axis=None)

    assert np.isfinite(step(tf.constant(x[:BATCH]), tf.constant(y[:BATCH])).numpy())
    watch.lap()
    return step


def measure(setting: Setting) -> dict[str, float]:
    """Return the seconds of each part, in this process."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    several = setting.replicas > 1
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if several else tf.distribute.get_strategy()
    run = loop if setting.contestant == "hand-written loop" else fit
    found = measure_parts(
        lambda watch: run(setting, strategy, watch), setting.xla, setting.contestant == "unisono"
    )
    return {"all": sum(found.values()), **found}


def in_process(setting: Setting, cache: str = "") -> dict[str, float]:
    """Return the seconds of each part, in a new process, with the compiled programs of this folder."""
    command = [sys.executable, "-m", "benchmarks.start", "--measure", json.dumps(setting)]
    done = subprocess.run(command, env={**os.environ, "UNISONO_CACHE": cache}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{setting} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def turn(settings: Sequence[Setting], backwards: bool) -> dict[tuple[Setting, bool], dict[str, float]]:
    """Measure each setting once, and those of Unisono under XLA twice: what was compiled before is True."""
    found = {}
    for setting in settings[:: -1 if backwards else 1]:
        twice = setting.contestant == "unisono" and setting.xla
        with tempfile.TemporaryDirectory() as folder:
            for again in (False, True)[: 1 + twice]:
                found[setting, again] = in_process(setting, folder if twice else "")
    return found


def main(rounds: int = 3, names: Sequence[str] = tuple(MODELS)) -> None:
    """Prints a table: `python -m benchmarks.start [ROUNDS] [MODEL ...]`.

    In each round, each contestant takes the first step of a new model in a process of its own. The table has medians of
    seconds of CPU time from the beginning of `fit`, without imports, to the end of the step, and median ratios.
    """
    rows = []
    for model in names:
        for replicas in (1, 2):
            for xla in (False, True):
                # Keras' step cannot be compiled where its variables are on two devices.
                trainers = CONTESTANTS[: 2 if xla and replicas > 1 else 3]
                settings = [Setting(model, each, replicas, xla) for each in trainers]
                turns = [turn(settings, n % 2 == 1) for n in range(rounds)]
                for setting, again in turns[0]:
                    mine = [each[setting, again] for each in turns]
                    loops = [each[settings[1], False]["all"] for each in turns]
                    ratio = statistics.median(own["all"] / other for own, other in zip(mine, loops))
                    where = f"{model}, {replicas} replica{'s' * (replicas > 1)}, {'XLA' if xla else 'graph'}"
                    row = [where, setting.contestant + ", compiled before" * again]
                    row += [
                        f"{statistics.median(each[part] for each in mine):.1f}" for part in ("all", *PARTS)
                    ]
                    rows.append([*row, f"{ratio:.2f}"])
                    print(" | ".join(rows[-1]), flush=True)
    head = ["first step of", "trainer", "all, s", "before the graph", "tracing", "labelling", "rebuilding"]
    publish("start", [*head, "Grappler or XLA", "rest of the call", "/ loop"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Setting(*json.loads(sys.argv[2])))))
    else:
        main(int((sys.argv[1:] or ["3"])[0]), sys.argv[2:] or tuple(MODELS))
