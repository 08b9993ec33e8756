"""A GAN as in the guides of keras.io, on two replicas: handwritten digits out of noise.

The class is written for one device, with two optimizers and a loss of Keras; only `unisono.Model` is new. Under a strategy
each optimizer sums its gradients over the replicas, each replica draws its own noise, and losses cover the global batch.
An interrupted run resumes with both optimizers. Two lines make it real; they are marked with "real:".
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import sklearn.datasets
import tensorflow as tf

import unisono

NOISE = 16


class GAN(unisono.Model):
    """A generator that learns to fool a discriminator."""

    def __init__(self, discriminator: keras.Model, generator: keras.Model, latent_dim: int) -> None:
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def call(self, noise):
        return self.generator(noise)

    def train_step(self, real_images):
        rows = tf.shape(real_images)[0]
        real, fake = tf.zeros((rows, 1)), tf.ones((rows, 1))
        noise = keras.random.normal((rows, self.latent_dim), seed=self.seed_generator)
        images = tf.concat([self.generator(noise), real_images], axis=0)
        labels = tf.concat([fake, real], axis=0)
        labels += 0.05 * keras.random.uniform(tf.shape(labels), seed=self.seed_generator)

        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images, training=True))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))

        noise = keras.random.normal((rows, self.latent_dim), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(real, self.discriminator(self.generator(noise), training=True))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def make_discriminator(side: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((side, side)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="leaky_relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(64, activation="leaky_relu"),
            keras.layers.Dense(1),
        ],
        name="discriminator",
    )


def make_generator(side: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((NOISE,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(side * side, activation="sigmoid"),
            keras.layers.Reshape((side, side)),
        ],
        name="generator",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--steps", type=int, help="steps of an epoch; default: all samples")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo"))
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    unisono.distribute.simulate_devices(2)
    # real: strategy = unisono.distribute.auto_strategy()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    # real: images = keras.datasets.mnist.load_data()[0][0] / 255
    images = sklearn.datasets.load_digits().images / 16
    x = images.astype("float32")
    side = x.shape[1]
    with strategy.scope():
        gan = GAN(make_discriminator(side), make_generator(side), latent_dim=NOISE)
        gan.compile(
            d_optimizer=unisono.optimizers.Adam(5e-4, beta_1=0.5),
            g_optimizer=unisono.optimizers.Adam(5e-4, beta_1=0.5),
            loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
        )
    dataset = (
        tf.data.Dataset.from_tensor_slices(x).shuffle(len(x), seed=1).batch(51).prefetch(tf.data.AUTOTUNE)
    )
    backup = unisono.callbacks.BackupAndRestore(options.folder / "gan_backup")
    gan.fit(dataset, epochs=options.epochs, steps_per_epoch=options.steps, callbacks=[backup], verbose=2)

    drawn = gan.generator.predict(keras.random.normal((40, NOISE), seed=3), verbose=0)
    options.folder.mkdir(parents=True, exist_ok=True)
    draw(drawn, options.folder / "gan.png")
    print(f"\ndigits out of noise, all 40 in {options.folder / 'gan.png'}:")
    for row in range(side):
        lines = ("".join(" .:*#"[int(4.99 * v)] * 2 for v in image[row]) for image in drawn[:4])
        print("   ".join(lines).rstrip())


def draw(images, path: pathlib.Path) -> None:
    """Write 40 images as one PNG."""
    side = images.shape[1] + 2
    framed = tf.pad(images, [(0, 0), (1, 1), (1, 1)])
    picture = tf.transpose(tf.reshape(framed, (4, 10, side, side)), (0, 2, 1, 3))
    picture = 255 * (1 - tf.reshape(picture, (4 * side, 10 * side, 1)))
    tf.io.write_file(
        str(path), tf.io.encode_png(tf.cast(tf.image.resize(picture, (320, 800), "nearest"), tf.uint8))
    )


if __name__ == "__main__":
    main()
