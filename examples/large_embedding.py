"""An embedding of a million rows on two parameter servers, trained asynchronously by two workers.

    python -m unisono launch --workers 2 --parameter-servers 2 large_embedding.py

The table is split by rows over the servers. A worker reads the rows of the table for its batch, and sends gradients of
these rows of the table alone. So the cost of a step does not depend on the size of the table. Run alone, `python
large_embedding.py`, the program trains on one device.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import unisono


def make_data(words: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts of 20 words, of which few are frequent; a text is positive if more than half of its words are even."""
    random = np.random.default_rng(1)
    texts = np.minimum(random.zipf(1.3, size=(rows, 20)), words) - 1
    return texts.astype("int32"), (texts % 2 == 0).mean(axis=1) > 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=1_000_000, help="rows of the embedding")
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    if "TF_CONFIG" in os.environ:  # of the launcher, or of the cluster
        strategy = unisono.distribute.ParameterServerStrategy(
            variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)
        )
    else:
        strategy = tf.distribute.get_strategy()
    with strategy.scope():
        embedding = keras.layers.Embedding(options.words, 16)
        model = unisono.Sequential(
            [
                keras.Input((20,), dtype="int32"),
                embedding,
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(unisono.optimizers.Adagrad(0.5), "binary_crossentropy", metrics=["accuracy"])
    x, y = make_data(options.words, rows=64 * options.steps)
    x_new, y_new = x[:640], y[:640]
    model.fit(x[640:], y[640:], batch_size=64, verbose=2)
    accuracy = model.evaluate(x_new, y_new, verbose=0, return_dict=True)["accuracy"]
    size = 4 * options.words * 16 / 1e6
    print(f"{model.optimizer.iterations.numpy()} updates of a table of {size:.0f} MB")
    print(f"{accuracy:.1%} of {len(y_new)} new texts are classified correctly")


if __name__ == "__main__":
    main()
