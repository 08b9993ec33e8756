"""Two towers with an embedding of a million users, on two parameter servers, trained asynchronously by two workers.

    python -m unisono launch --workers 2 --parameter-servers 2 large_embedding.py

The retrieval model of recommenders: one tower for users, one for items, and the items of the other users in a batch as wrong
answers. Each table is split by rows over the servers. A worker reads the rows of the table for its batch, and sends
gradients of these rows of the table alone. So the cost of a step does not depend on the size of the table. Run alone,
`python large_embedding.py`, the program trains on one device. Two lines make it real; they are marked with "real:".
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import unisono

TASTES, WIDTH = 20, 16


def make_choices(users: int, items: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Users, of whom few are active, and the items they chose: popular ones of their taste."""
    random = np.random.default_rng(1)
    user, rank = (np.minimum(random.zipf(1.3, count), most) - 1 for most in (users, items // TASTES))
    return user.astype("int32"), (rank * TASTES + user % TASTES).astype("int32")


def tower(name: str, size: int) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    number = keras.Input((), dtype="int32", name=name)
    hidden = keras.layers.Embedding(size, WIDTH)(number)
    return number, keras.layers.Dense(WIDTH)(keras.layers.Dense(2 * WIDTH, "relu")(hidden))


def softmax_over_batch(item, scores):
    """Of the scores of each user for the items of all users in the batch, that of the own item is the right one."""
    item = tf.reshape(item, [-1])
    right = tf.eye(tf.shape(item)[0])
    twice = (
        tf.cast(item[:, None] == item, scores.dtype) - right
    )  # the right item again, which another user chose
    return tf.nn.softmax_cross_entropy_with_logits(right, scores - 1e9 * twice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    if "TF_CONFIG" in os.environ:  # of the launcher, or of the cluster
        strategy = unisono.distribute.ParameterServerStrategy(
            variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)
        )
    else:
        strategy = tf.distribute.get_strategy()
    # real: users, items = 162_542, 209_172  # MovieLens 25M
    users, items = options.users, options.items
    # real: user, item = np.loadtxt("ratings.csv", "int32", delimiter=",", skiprows=1, usecols=(0, 1)).T
    user, item = make_choices(users, items, 64 * options.steps)
    with strategy.scope():
        (user_input, query), (item_input, answer) = tower("user", users), tower("item", items)
        scores = keras.ops.matmul(query, keras.ops.transpose(answer))
        model = unisono.Model({"user": user_input, "item": item_input}, scores)
        model.compile(unisono.optimizers.Adagrad(0.1), softmax_over_batch)
        query_model, answer_model = unisono.Model(user_input, query), unisono.Model(item_input, answer)
    model.fit({"user": user[640:], "item": item[640:]}, item[640:], batch_size=64, verbose=2)

    # Retrieval: the ten best of all items for users whose next choice was kept aside.
    answers = answer_model.predict(np.arange(items), batch_size=1000, verbose=0)
    queries = query_model.predict(user[:640], batch_size=64, verbose=0)
    best = np.argsort(-queries @ answers.T, axis=1)[:, :10]
    hits = np.mean(np.any(best == item[:640, None], axis=1))
    size = 4 * (users + items) * WIDTH / 1e6
    print(f"{model.optimizer.iterations.numpy()} updates of tables of {size:.0f} MB")
    print(f"{hits:.1%} of {640} new choices are among the ten best of {items:,} items")


if __name__ == "__main__":
    main()
