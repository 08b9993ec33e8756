"""Times steps and first steps of models with many layers and variables, against a hand-written loop and Keras 3."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import unisono
from benchmarks.contestants.tensorflow_loops import step_of
from benchmarks.tables import publish, spread

BATCH, WIDTH, CHAIN, STEPS, MOST = 32, 16, 100, 20, 200
Epoch = Callable[[int], None]


def deep(layers: int) -> Callable[[Any], Any]:
    """A network of `layers` hidden layers, in parallel chains: Keras follows a chain by recursion."""

    def build(model_class: Any) -> Any:
        inputs = keras.Input((WIDTH,))
        ends = []
        for first in range(0, layers, CHAIN):
            h = inputs
            for number in range(first, min(layers, first + CHAIN)):
                new = keras.layers.Dense(WIDTH, "tanh")(h)
                h = keras.layers.Add()([h, new]) if number % 2 else new
            ends.append(h)
        h = keras.layers.Add()(ends) if len(ends) > 1 else ends[0]
        return model_class(inputs, keras.layers.Dense(10)(h))

    return build


def tables(number: int) -> Callable[[Any], Any]:
    """A network with `number` features, each with its own embedding table."""

    def build(model_class: Any) -> Any:
        inputs = keras.Input((number,), dtype="int32")
        found = [keras.layers.Embedding(WIDTH, 4)(inputs[:, i]) for i in range(number)]
        return model_class(inputs, keras.layers.Dense(10)(keras.layers.Concatenate()(found)))

    return build


MODELS = ("32 hidden layers", "100 embedding tables", "1000 hidden layers", "1000 embedding tables")
MOST_FOR_KERAS = 1000  # variables


def maker_of(name: str) -> tuple[Callable[[Any], Any], int]:
    """The function that builds a model, and its number of integer features (0: float features)."""
    number, _, kind = name.partition(" ")
    return (deep(int(number)), 0) if kind == "hidden layers" else (tables(int(number)), int(number))


def data(features: int, steps: int) -> tuple[Any, Any]:
    """Samples for `steps` steps."""
    random = np.random.default_rng(0)
    samples = BATCH * steps
    words = random.integers(0, WIDTH, (samples, features or 1)).astype("int32")
    x = words if features else random.normal(size=(samples, WIDTH)).astype("float32")
    return x, random.integers(0, 10, samples)


def by_fit(build: Callable[[Any], Any], features: int, model_class: Any) -> tuple[Epoch, Any]:
    """A function that runs an epoch of `fit`, and the model."""
    model = build(model_class)
    options = {} if model_class is unisono.Model else {"steps_per_execution": STEPS}
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
        **options,
    )

    def epoch(steps: int) -> None:
        x, y = data(features, steps)
        model.fit(x, y, batch_size=BATCH, verbose=0)

    return epoch, model


def hand_written(build: Callable[[Any], Any], features: int) -> tuple[Epoch, Any]:
    """A function that runs an epoch of the hand-written loop, and the model."""
    model = build(keras.Model)
    step = step_of(model)

    @tf.function(autograph=False, reduce_retracing=True)
    def run(xs: Any, ys: Any, order: Any, steps: Any) -> Any:
        def body(i: Any, _: Any) -> Any:
            indices = tf.gather(order, i * BATCH + tf.range(BATCH))
            return i + 1, step(tf.gather(xs, indices), tf.gather(ys, indices))

        return tf.while_loop(lambda i, _: i < steps, body, (tf.constant(0), tf.constant(0.0)))[1]

    most = data(features, MOST)

    def epoch(steps: int) -> None:
        order = tf.constant(np.random.permutation(steps * BATCH))
        x, y = (tf.constant(a) for a in most)
        float(run(x, y, order, tf.constant(steps)))

    return epoch, model


def timed(epoch: Epoch, steps: int) -> float:
    """The seconds of one epoch."""
    began = time.perf_counter()
    epoch(steps)
    return time.perf_counter() - began


def row(name: str, rounds: int) -> list[str]:
    """Measures one model; returns its line of the table."""
    build, features = maker_of(name)
    makers = [
        lambda: by_fit(build, features, unisono.Model),
        lambda: hand_written(build, features),
        lambda: by_fit(build, features, keras.Model),
    ]
    epochs, firsts, variables = [], [], 0
    for make in makers:
        if len(epochs) == 2 and variables > MOST_FOR_KERAS:
            break
        epoch, model = make()
        variables = len(model.trainable_variables)
        epochs.append(epoch)
        firsts.append(timed(epoch, STEPS))
        print(name, len(epochs), f"{firsts[-1]:.1f} s", file=sys.stderr, flush=True)
    fastest = min(timed(epoch, STEPS) for epoch in epochs)
    steps = STEPS * max(1, min(MOST // STEPS, int(1 / fastest)))
    for epoch in epochs:
        timed(epoch, steps)  # compiled calls reach their full length
    turns = []
    for turn in range(rounds):
        order = range(len(epochs))[:: 1 if turn % 2 else -1]
        found = {which: timed(epochs[which], steps) for which in order}
        turns.append([found[which] for which in range(len(epochs))])
    ours, *others = zip(*turns)
    ratios = [spread([a / b for a, b in zip(ours, other)]) for other in others]
    of_first = [f"{firsts[0] / first:.2f}" for first in firsts[1:]]
    absent = ["-"] * (len(makers) - len(epochs))
    times = [spread(ours, 1e3 / steps), *ratios, *absent, f"{firsts[0]:.1f}", *of_first, *absent]
    return [name.replace("1000", "1,000", 1), f"{variables:,}", *times]


def main(rounds: int = 7, names: Sequence[str] = MODELS) -> None:
    """Prints a table. Run it with `python -m benchmarks.many_variables [ROUNDS] [MODEL ...]`.

    The models are narrow networks of 32 and 1,000 hidden layers, and networks with 100 and 1,000 small embedding
    tables. `"10000 embedding tables"` runs only on request. All train with Adam, from arrays, in the graph (without
    XLA), and take turns in one process. The hand-written loop runs all steps of an epoch in one call, computes no
    metric and uses Keras' Adam. Keras runs 20 steps per call, and is left out beyond 1,000 variables. First steps are
    those of one new model each.
    """
    rows = []
    for name in names:
        rows.append(row(name, rounds))
        print(" ".join(rows[-1]), flush=True)
        keras.backend.clear_session()
    head = [
        "Adam, batch 32, in the graph",
        "variables",
        "`fit`, ms a step",
        "/ hand-written loop",
        "/ Keras 3",
    ]
    head += ["first 20 steps of `fit`, s", "/ hand-written loop", "/ Keras 3"]
    publish("many_variables", head, rows)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["7"])[0]), sys.argv[2:] or MODELS)
