"""A GAN with two optimizers in a `train_step` of its own, on two replicas: handwritten digits out of noise.

The step is written for one device. Under a strategy each optimizer sums its gradients over the replicas, and each replica
draws other noise.
"""

from __future__ import annotations

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import sklearn.datasets
import tensorflow as tf

import unisono

NOISE = 16


class GAN(unisono.Model):
    """A generator that fools a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [
                keras.Input((NOISE,)),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(64, activation="sigmoid"),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(128, activation="leaky_relu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(64, activation="leaky_relu"),
                keras.layers.Dense(1),
            ]
        )
        self.seeds = keras.random.SeedGenerator(1)

    def compile(self, generator_optimizer: keras.optimizers.Optimizer, **kwargs) -> None:
        super().compile(**kwargs)
        self.generator_optimizer = generator_optimizer

    def call(self, noise):
        return self.generator(noise)

    def train_step(self, data):
        real = data[0] if isinstance(data, tuple) else data
        noise = keras.random.normal((tf.shape(real)[0], NOISE), seed=self.seeds)
        with tf.GradientTape() as tape:
            logits = self.discriminator(tf.concat([real, self.generator(noise)], 0), training=True)
            is_real, is_fake = tf.split(logits, 2)
            d_loss = tf.reduce_mean(tf.nn.softplus(-is_real) + tf.nn.softplus(is_fake))
        weights = self.discriminator.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = tf.reduce_mean(tf.nn.softplus(-self.discriminator(self.generator(noise), training=True)))
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def draw(images, path: pathlib.Path) -> None:
    """Writes 40 images of 8 x 8 as one PNG."""
    grid = tf.reshape(images[:40], (4, 10, 8, 8))
    picture = tf.reshape(tf.transpose(grid, (0, 2, 1, 3)), (32, 80, 1))
    picture = tf.image.resize(255 * (1 - picture), (320, 800), "nearest")
    tf.io.write_file(str(path), tf.io.encode_png(tf.cast(picture, tf.uint8)))


def main(folder: str = "demo") -> None:
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    unisono.distribute.simulate_devices(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    x = (sklearn.datasets.load_digits().data / 16).astype("float32")
    with strategy.scope():
        gan = GAN()
        gan.build((None, NOISE))
        gan.compile(
            optimizer=unisono.optimizers.Adam(5e-4, beta_1=0.5),
            generator_optimizer=unisono.optimizers.Adam(5e-4, beta_1=0.5),
        )
    gan.fit(x, batch_size=51, epochs=60, verbose=2)
    draw(gan.predict(keras.random.normal((40, NOISE), seed=3), verbose=0), out / "gan.png")
    print(f"\ndigits out of noise: {out / 'gan.png'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
