"""Handwritten digits on one device and on two replicas, with the same result.

Trains a small convolutional network on the 1,797 real digits of scikit-learn, first on one device, then from the same
initial weights under `MirroredStrategy` on two logical devices. The batch of 51 samples does not divide by two, and the
last batch of an epoch is smaller still. Run it with `make demo`, or `python examples/digits_mirrored.py [FOLDER]`.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import unisono

BATCH = 51
EPOCHS = 15
TRAIN_ROWS, TEST_ROWS = 1437, 360
# Of any weight after all epochs, in float64: two replicas add in a different order. In float32 such a
# difference can grow to 1e-3 in 15 epochs, on any number of replicas: a ReLU near zero decides otherwise.
LARGEST_DIFFERENCE = 1e-9


def load_digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images of shape (samples, 8, 8, 1) with values from 0 to 1, and their labels, for training and for testing."""
    digits = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = digits.images[order, ..., None] / 16.0
    labels = digits.target[order].astype("int32")
    return (images[:-TEST_ROWS], labels[:-TEST_ROWS]), (images[-TEST_ROWS:], labels[-TEST_ROWS:])


def make_model() -> unisono.Sequential:
    """A small convolutional network, compiled; the learning rate falls to zero over the run."""
    steps = EPOCHS * -(-TRAIN_ROWS // BATCH)
    model = unisono.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(36, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=unisono.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, steps)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train(
    strategy: tf.distribute.Strategy, train_data: Any, test_data: Any
) -> tuple[Any, dict[str, list[float]]]:
    """Trains one model under `strategy`, with the same seed, initial weights and order of samples each time."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = make_model()
    history = model.fit(*train_data, batch_size=BATCH, epochs=EPOCHS, validation_data=test_data)
    return model, history.history


def largest_difference(one: Any, other: Any) -> float:
    """The largest difference of any weight of two models."""
    return max(
        float(np.max(np.abs(a - b))) for a, b in zip(one.get_weights(), other.get_weights(), strict=True)
    )


def draw(path: pathlib.Path, one: Any, two: Any, model: Any, test_data: Any) -> None:
    """Writes a PNG: the learning curves of both runs, and the first test digits with what the model says."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    images, labels = test_data
    figure = plt.figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    axes = left.subplots(2, 1, sharex=True)
    epochs = range(1, EPOCHS + 1)
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        for part, color in ((name, "tab:blue"), (f"val_{name}", "tab:orange")):
            label = "test" if part.startswith("val_") else "training"
            axis.plot(epochs, one[part], color=color, linewidth=4, alpha=0.35, label=f"{label}, one device")
            axis.plot(epochs, two[part], color=color, linestyle="--", label=f"{label}, two replicas")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[0].legend(fontsize=8)
    axes[1].set_xlabel("epoch")
    answers = model.predict(images, verbose=0).argmax(axis=-1)
    wrong = np.flatnonzero(answers != labels)
    shown = np.concatenate([wrong[:4], np.setdiff1d(np.arange(len(labels)), wrong)])[:20]
    for axis, i in zip(right.subplots(4, 5).flat, shown, strict=True):
        axis.imshow(images[i, ..., 0], cmap="gray_r")
        axis.axis("off")
        right_answer = answers[i] == labels[i]
        title = f"{answers[i]}" if right_answer else f"{answers[i]} (is {labels[i]})"
        axis.set_title(title, fontsize=10, color="black" if right_answer else "tab:red")
    right.suptitle("what the model says (red: its mistakes)", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(folder: str = "demo") -> None:
    """Trains twice, compares, saves, opens again with plain Keras, draws."""
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    unisono.distribute.simulate_devices(2)
    keras.config.set_floatx("float64")
    train_data, test_data = load_digits()

    print("One device")
    single, one = train(tf.distribute.get_strategy(), train_data, test_data)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    print(f"\nMirroredStrategy, {strategy.num_replicas_in_sync} replicas")
    model, two = train(strategy, train_data, test_data)

    difference = largest_difference(single, model)
    saved = out / "digits.keras"
    model.save(saved)
    plain = keras.saving.load_model(saved)
    _, accuracy = plain.evaluate(*test_data, verbose=0)
    draw(out / "digits.png", one, two, model, test_data)

    print(f"\ntest accuracy                  {accuracy:.4f}   ({TEST_ROWS} digits that training never saw)")
    print(
        f"largest difference of weights  {difference:.1e}   (one device and two replicas, after {EPOCHS} epochs)"
    )
    print(
        f"saved model                    {saved}   (opened again as {type(plain).__module__}.{type(plain).__name__})"
    )
    print(f"curves and digits              {out / 'digits.png'}")
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"The two runs differ by {difference:.1e}: more than {LARGEST_DIFFERENCE:.0e}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
