"""A denoising diffusion model (DDPM), on two replicas: digits out of noise, in 200 small steps.

A U-Net learns to predict the noise in an image, for every amount of noise. `train_step` is that of the paper (Ho et al.,
2020); `fit` makes it exact on several replicas, averages the weights, and resumes. Two lines make it real; they are marked
with "real:".
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import unisono

TIMES = 200
BETAS = np.linspace(1e-4, 0.05, TIMES).astype("float32")
KEPT = np.cumprod(1 - BETAS)  # the share of the image's variance that is left after so many steps


class DDPM(unisono.Model):
    """Predicts the noise that was added to an image."""

    def __init__(self, network: keras.Model) -> None:
        super().__init__()
        self.network = network
        self.draws = keras.random.SeedGenerator(1)
        self.mean_loss = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.network(inputs)

    def train_step(self, images):
        count = tf.shape(images)[0]
        times = keras.random.randint((count,), 0, TIMES, seed=self.draws)
        noise = keras.random.normal(tf.shape(images), seed=self.draws)
        kept = tf.gather(tf.constant(KEPT), times)[:, None, None, None]
        noisy = tf.sqrt(kept) * images + tf.sqrt(1 - kept) * noise
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(noise - self.network([noisy, times], training=True)))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}

    @tf.function
    def denoise(self, images, time):
        """Go one step back, from `time` + 1 to `time`."""
        beta, kept = tf.gather(BETAS, time), tf.gather(KEPT, time)
        noise = self.network([images, tf.fill(tf.shape(images)[:1], time)], training=False)
        mean = (images - beta / tf.sqrt(1 - kept) * noise) / tf.sqrt(1 - beta)
        return mean + tf.sqrt(beta) * tf.cast(time > 0, tf.float32) * tf.random.normal(tf.shape(images))

    def sample(self, count: int) -> np.ndarray:
        images = tf.random.normal((count, *self.network.input_shape[0][1:]))
        for time in reversed(range(TIMES)):
            images = self.denoise(images, tf.constant(time))
        return images.numpy()


def make_network(side: int, channels: int, width: int = 32) -> keras.Model:
    """A U-Net of two levels; the time enters each of its blocks."""
    image = keras.Input((side, side, channels))
    time = keras.Input((), dtype="int32")
    moment = keras.layers.Dense(width, "swish")(keras.layers.Embedding(TIMES, width)(time))

    def block(x, filters):
        y = keras.layers.Conv2D(filters, 3, padding="same")(x)
        y = keras.layers.Add()(
            [y, keras.layers.Reshape((1, 1, filters))(keras.layers.Dense(filters)(moment))]
        )
        y = keras.layers.Activation("swish")(keras.layers.GroupNormalization(8)(y))
        return keras.layers.Add()(
            [keras.layers.Conv2D(filters, 3, padding="same")(y), keras.layers.Conv2D(filters, 1)(x)]
        )

    high = block(image, width)
    low = block(block(keras.layers.AveragePooling2D(2)(high), 2 * width), 2 * width)
    both = keras.layers.Concatenate()([keras.layers.UpSampling2D()(low), high])
    noise = keras.layers.Conv2D(channels, 1, kernel_initializer="zeros")(block(both, width))
    return keras.Model([image, time], noise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--steps", type=int, help="steps of an epoch; default: all samples")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo/ddpm"))
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    unisono.distribute.simulate_devices(2)
    # real: strategy = unisono.distribute.auto_strategy()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    # real: images = keras.datasets.cifar10.load_data()[0][0] / 255
    images = sklearn.datasets.load_digits().images[..., None] / 16
    images = (2 * images - 1).astype("float32")
    with strategy.scope():
        model = DDPM(make_network(images.shape[1], images.shape[-1]))
        model.compile(unisono.optimizers.Adam(2e-3, use_ema=True, ema_momentum=0.99))
    callbacks = [
        unisono.callbacks.SwapEMAWeights(swap_on_epoch=True),
        unisono.callbacks.BackupAndRestore(options.folder / "backup"),
    ]
    model.fit(
        images,
        batch_size=51,
        epochs=options.epochs,
        steps_per_epoch=options.steps,
        callbacks=callbacks,
        verbose=2,
    )
    drawn = (model.sample(40) / 2 + 0.5).clip(0, 1)
    options.folder.mkdir(parents=True, exist_ok=True)
    draw(drawn, options.folder / "ddpm.png")
    print(f"\ndigits out of noise, all 40 in {options.folder / 'ddpm.png'}:")
    for row in range(drawn.shape[1]):
        lines = ("".join(" .:*#"[int(4.99 * v)] * 2 for v in image[row, :, 0]) for image in drawn[:4])
        print("   ".join(lines).rstrip())


def draw(images: np.ndarray, path: pathlib.Path) -> None:
    """Write 40 images as one PNG; what has one channel is ink."""
    ink = images.shape[-1] == 1
    framed = np.pad(1 - images if ink else images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=1)
    side, channels = framed.shape[2:]
    picture = tf.transpose(tf.reshape(framed, (4, 10, side, side, channels)), (0, 2, 1, 3, 4))
    picture = 255 * tf.reshape(picture, (4 * side, 10 * side, channels))
    tf.io.write_file(
        str(path), tf.io.encode_png(tf.cast(tf.image.resize(picture, (320, 800), "nearest"), tf.uint8))
    )


if __name__ == "__main__":
    main()
