"""A variational autoencoder on two replicas: handwritten digits as points of a plane, as in the guide of keras.io.

The loss has two parts, the error of the picture and the distance of its point from a normal distribution. Both are
means over samples. Two replicas share batches of 51 samples, and the means cover all 51.
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


class Sampling(keras.layers.Layer):
    """Draws a point from the normal distribution that the encoder names by its mean and the logarithm of its variance."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


class VAE(unisono.Model):
    """An encoder, a point drawn by what it says, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)]
        )
        self.sampling = Sampling()
        self.decoder = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(64)]
        )

    def encode(self, images):
        return tf.split(self.encoder(images), 2, axis=-1)

    def call(self, images):
        return self.decoder(self.sampling(self.encode(images)))

    def train_step(self, data):
        images = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean, log_variance = self.encode(images)
            logits = self.decoder(self.sampling([mean, log_variance]))
            errors = tf.nn.sigmoid_cross_entropy_with_logits(images, logits)
            picture = tf.reduce_mean(tf.reduce_sum(errors, axis=-1))
            distances = tf.square(mean) + tf.exp(log_variance) - log_variance - 1.0
            distance = tf.reduce_mean(0.5 * tf.reduce_sum(distances, axis=-1))
            loss = picture + distance
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss, "picture": picture, "distance": distance}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo"))
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    unisono.distribute.simulate_devices(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    x = (sklearn.datasets.load_digits().data / 16).astype("float32")
    with strategy.scope():
        vae = VAE()
        vae.build((None, 64))
        vae.compile(unisono.optimizers.Adam(3e-3))
    history = vae.fit(x, batch_size=51, epochs=options.epochs, verbose=2)
    drawn = tf.sigmoid(vae.decoder(tf.constant([[-1.0, 0.0], [1.0, 0.0]]))).numpy().reshape(2, 8, 8)
    print(f"\nloss {history.history['loss'][-1]:.1f}; two digits that nobody wrote:")
    for row in range(8):
        print("   ".join("".join(" .:*#"[int(4.99 * v)] * 2 for v in digit[row]) for digit in drawn))
    options.folder.mkdir(parents=True, exist_ok=True)
    draw(vae.decoder, options.folder / "vae.png")
    print(f"the plane: {options.folder / 'vae.png'}")


def draw(decoder, path: pathlib.Path) -> None:
    """Write the digits of a part of the plane as one PNG, in 8 lines of 20."""
    across, down = tf.linspace(-2.5, 2.5, 20), tf.linspace(-2.5, 2.5, 8)
    points = tf.reshape(tf.stack(tf.meshgrid(across, down), axis=-1), (-1, 2))
    digits = tf.pad(tf.reshape(tf.sigmoid(decoder(points)), (8, 20, 8, 8)), [(0, 0), (0, 0), (1, 1), (1, 1)])
    picture = 255 * (1 - tf.reshape(tf.transpose(digits, (0, 2, 1, 3)), (80, 200, 1)))
    tf.io.write_file(
        str(path), tf.io.encode_png(tf.cast(tf.image.resize(picture, (320, 800), "nearest"), tf.uint8))
    )


if __name__ == "__main__":
    main()
