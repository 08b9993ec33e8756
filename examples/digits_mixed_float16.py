"""Handwritten digits in mixed precision: float16 by one call, in `fit` and in a custom loop.

Trains a small network on the 1,797 real digits of scikit-learn three times, from the same initial weights: with `fit` in
float32, with `fit` in mixed_float16 under `MirroredStrategy` on two logical devices, and in mixed_float16 with a
custom loop. In the second epoch of the mixed run one image is far outside of float16's range: that step is skipped on both
replicas, the loss scale is halved, and training goes on. Run it with `python examples/digits_mixed_float16.py`.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import unisono
from unisono.mixed_precision import skipped_steps

BATCH = 48
EPOCHS = 8
TEST_ROWS = 360
# On the test digits, for every way of training.
LEAST_ACCURACY = 0.93


def load_digits():
    """Images of 64 pixels from 0 to 1 and their labels, for training and for testing."""
    digits = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16.0).astype("float32")
    labels = digits.target[order].astype("int32")
    return (images[:-TEST_ROWS], labels[:-TEST_ROWS]), (images[-TEST_ROWS:], labels[-TEST_ROWS:])


def make_model():
    """A small network. The last layer stays in float32: a softmax over float16 logits is less exact than it need be."""
    keras.utils.set_random_seed(7)
    return unisono.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, dtype="float32"),
        ]
    )


def fit(train_data, strategy):
    """Trains with `fit` under the policy that is set; returns the model and the history."""
    with strategy.scope():
        model = make_model()
        model.compile(
            "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
    images, labels = train_data
    first = model.fit(images, labels, batch_size=BATCH, verbose=2).history
    if unisono.mixed_precision.global_policy().name == "mixed_float16":
        images = images.copy()
        images[100] = 1e30
    rest = [model.fit(images, labels, batch_size=BATCH, verbose=2).history]
    rest.append(model.fit(*train_data, batch_size=BATCH, epochs=EPOCHS - 2, verbose=2).history)
    return model, {name: sum((h[name] for h in rest), first[name]) for name in first}


def custom_loop(train_data):
    """The same training written out: scale, gradients, unscale, finite check and update in one call of `minimize`."""
    model = make_model()
    optimizer = unisono.mixed_precision.LossScaleOptimizer(unisono.optimizers.Adam())
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        optimizer.minimize(loss, model.trainable_variables, tape=tape)
        return loss

    dataset = tf.data.Dataset.from_tensor_slices(train_data).shuffle(2000, seed=1).batch(BATCH)
    for epoch in range(EPOCHS):
        losses = [float(step(images, labels)) for images, labels in dataset]
        logs = skipped_steps.step_logs(optimizer)
        skipped_steps.check_progress(optimizer)
        print(f"epoch {epoch + 1}  loss {np.mean(losses):.4f}  {logs}")
    return model


def accuracy(model, test_data):
    images, labels = test_data
    return float(np.mean(np.argmax(model(images, training=False), axis=-1) == labels))


def main():
    """Trains three times and compares."""
    unisono.distribute.simulate_devices(2)
    train_data, test_data = load_digits()

    print("float32, one device")
    plain, _ = fit(train_data, tf.distribute.get_strategy())

    print("\nmixed_float16, MirroredStrategy, 2 replicas")
    unisono.mixed_precision.set_global_policy("mixed_float16")
    mixed, history = fit(train_data, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))

    print("\nmixed_float16, custom loop")
    loop = custom_loop(train_data)

    results = {
        "float32": accuracy(plain, test_data),
        "mixed_float16, 2 replicas": accuracy(mixed, test_data),
        "mixed_float16, custom loop": accuracy(loop, test_data),
    }
    print(f"\nloss scale after each epoch   {[f'{scale:g}' for scale in history['loss_scale']]}")
    print(f"steps skipped so far          {[int(count) for count in history['skipped_steps']]}")
    for name, value in results.items():
        print(f"test accuracy, {name:28}{value:.4f}")
    layer = mixed.layers[0]
    print(f"first layer computes in {layer.compute_dtype}, keeps its weights in {layer.kernel.dtype}")
    if min(results.values()) < LEAST_ACCURACY:
        raise SystemExit(f"An accuracy is below {LEAST_ACCURACY}.")


if __name__ == "__main__":
    main()
