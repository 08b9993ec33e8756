"""Training with sharded state on any strategy: results as a dict of arrays, to be compared with one device.

`sharded.py FOLDER`. Weights are sharded too if each worker has one replica. `PARTS` lists the parts that run for each level.
"""

import contextlib
import sys

import keras
import numpy as np
import tensorflow as tf

import unisono
from unisono.distribute import auto_strategy, is_chief, num_workers, replicas, sharded, worker_index

random = np.random.default_rng(0)
TOKENS = random.integers(0, 7, size=(20, 3))
TARGETS = random.normal(size=(20, 2))


def model_with(strategy, optimizer):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers, double = keras.layers, {"dtype": "float64"}
        table, hidden = layers.Embedding(7, 3, **double), layers.Dense(5, "tanh", **double)
        last = layers.Dense(2, kernel_constraint="max_norm", **double)
        model = unisono.Sequential([keras.Input((3,), dtype="int64"), table, layers.Flatten(), hidden, last])
        model.compile(optimizer(), "mse", run_eagerly=strategy.num_replicas_in_sync == 1)
    return model


def accumulating():
    return unisono.optimizers.AdamW(
        0.05, global_clipnorm=0.3, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=2
    )


def whole_rule():
    return unisono.optimizers.Lamb(0.05)


def scaled():
    return unisono.mixed_precision.LossScaleOptimizer(unisono.optimizers.Adam(0.05), initial_scale=2.0**4)


def fit_with(make, strategy, out, found, *callbacks):
    model = model_with(strategy, make)
    model.fit(TOKENS, TARGETS, batch_size=5, epochs=2, shuffle=False, verbose=0, callbacks=[*callbacks])
    state(model, make.__name__, found)


def fits(strategy, out, found):
    """An optimizer that accumulates, clips and averages; models are saved in every format."""
    ours, theirs = unisono.callbacks.ModelCheckpoint, keras.callbacks.ModelCheckpoint
    savers = [ours(f"{out}/ours.keras"), theirs(f"{out}/theirs.keras")]
    weights = {"save_weights_only": True}  # Keras writes the optimizer state into these files, too
    savers += [ours(f"{out}/ours.weights.h5", **weights), theirs(f"{out}/theirs.weights.h5", **weights)]
    fit_with(accumulating, strategy, out, found, *savers)


def whole(strategy, out, found):
    fit_with(whole_rule, strategy, out, found)


def half(strategy, out, found):
    fit_with(scaled, strategy, out, found)


def eagerly(strategy, out, found):
    """A custom loop without a graph."""
    model = model_with(strategy, lambda: unisono.optimizers.Adam(0.05, clipnorm=0.2))
    dataset = tf.data.Dataset.from_tensor_slices((TOKENS, TARGETS)).batch(10)

    def on_replica(data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = unisono.distribute.global_mean(tf.square(model(x) - y))
        model.optimizer.minimize(loss, model.trainable_variables, tape=tape)

    for batch in strategy.experimental_distribute_dataset(dataset):
        strategy.run(on_replica, args=(batch,))
    state(model, "eager", found)


class AdaptsAtOnce(unisono.Model):
    """Its loss follows a step of gradient descent on the input: later reads depend on the first backward pass.

    Both backward passes contain collectives, those of the batch normalization.
    """

    def __init__(self):
        super().__init__(dtype="float64")
        self.first = keras.layers.Dense(4, "tanh", dtype="float64")
        self.same = keras.layers.BatchNormalization(synchronized=True, dtype="float64")
        self.last = keras.layers.Dense(2, dtype="float64")

    def call(self, x):
        return self.last(self.same(self.first(x), training=True))

    def train_step(self, data):
        x, y = (tf.cast(each, tf.float64) for each in data)
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                early = tf.reduce_sum(tf.square(self(x, training=True) - y))
            moved = x - 0.01 * inner.gradient(early, x)
            loss = self.compute_loss(x, y, self(moved, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


def adapting(strategy, out, found):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = AdaptsAtOnce()
        loss = keras.losses.MeanSquaredError(dtype="float64")
        model.compile(unisono.optimizers.SGD(0.05), loss, run_eagerly=strategy.num_replicas_in_sync == 1)
    x = np.random.default_rng(1).normal(size=(12, 3))
    model.fit(x, x[:, :2], batch_size=6, shuffle=False, verbose=0)
    found.update({f"adapting weight {i}": value for i, value in enumerate(model.get_weights())})


class Stopped(Exception):
    pass


class StopAtThird(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise Stopped


def resumed(strategy, out, found):
    """A training run that stops after three steps, and resumes from the backup of the second one."""
    for stop in (True, False):
        keras.backend.clear_session()
        model = model_with(strategy, accumulating)
        callbacks = [unisono.callbacks.BackupAndRestore(f"{out}/backup", save_freq=1, keep=1)]
        callbacks += [StopAtThird()] if stop else []
        with contextlib.suppress(Stopped):
            options = {"batch_size": 5, "epochs": 2, "shuffle": False, "verbose": 0}
            model.fit(TOKENS, TARGETS, callbacks=callbacks, **options)
        if stop:
            found["parts"] = num_workers() - 1
            if is_chief():  # another worker may be ahead of the chief
                newest = unisono.callbacks.latest_backup(f"{out}/backup")
                found["parts"] = len(list(newest.path.parent.glob(f"{newest.path.stem}.part-*")))
    state(model, "resumed", found)


def bytes_of_collectives(graph):
    """The bytes that one replica sends in the collectives of a graph and its subgraphs, by kind of collective."""
    sent = {}
    for operation in graph.get_operations():
        if operation.type.startswith("Collective"):
            value = operation.inputs[0]
            size = (value.shape.num_elements() or 0) * value.dtype.size
            sent[operation.type] = sent.get(operation.type, 0) + size
        for name in ("body", "then_branch", "else_branch", "f"):
            function = operation.node_def.attr[name].func.name if name in operation.node_def.attr else ""
            if function and graph._get_function(function) is not None:
                for kind, size in bytes_of_collectives(graph._get_function(function).graph).items():
                    sent[kind] = sent.get(kind, 0) + size
    return sent


def traffic(strategy, out, found):
    """The bytes a step sends, relative to an all-reduce of the gradients: N - 1 of N shards leave a replica, and return."""
    n = strategy.num_replicas_in_sync
    found["traffic"] = 1.0
    if n == 1:
        return
    keras.backend.clear_session()
    with strategy.scope():
        stack = [keras.layers.Dense(units) for units in (1000, 12, 1000, 12)]
        model = unisono.Sequential([keras.Input((12,)), *stack])
        model.compile(unisono.optimizers.Adam(0.05, global_clipnorm=1.0), "mse", steps_per_execution=1)
    x = random.normal(size=(12, 12)).astype("float32")
    model.fit(x, x, batch_size=12, verbose=0)
    gradients = sum(4 * int(np.prod(v.shape)) for v in model.trainable_variables)
    graph = model.train_function.graph()
    sent = bytes_of_collectives(graph)
    local = len(strategy.extended.worker_devices)  # the replicas of a worker share one graph
    factor = {
        "CollectiveReduceV2": 2 * (n - 1) / n,
        "CollectiveAllToAllV2": (n - 1) / n,
        "CollectiveGatherV2": n - 1,
    }
    total = sum(size * factor[kind] for kind, size in sent.items()) / local
    found["traffic"] = total / (gradients * 2 * (n - 1) / n)


def state(model, name, found):
    for kind, values in (("weight", model.get_weights()), ("slot", model.optimizer.get_weights())):
        found.update({f"{name} {kind} {i}": value for i, value in enumerate(values)})


# Some rules and steps run at one level only; `tests/single` has all of them at each level.
PARTS = {
    "weights": (fits, whole, eagerly, adapting, traffic, resumed),
    "optimizer": (fits, half, traffic, resumed),
}


def run(strategy, out, shared, level):
    found = {}
    for part in PARTS[level]:
        part(strategy, shared if part is resumed else out, found)
    return found


if __name__ == "__main__":
    replicas._BYTES_PER_PACK = 64  # many packs: the backward pass waits for all-reduces
    folder = sys.argv[1]
    own = folder if is_chief() else f"{folder}/not-chief"
    strategy = auto_strategy()
    level = "optimizer" if len(strategy.extended.worker_devices) > 1 else "weights"
    found = run(sharded(strategy, level), own, folder, level)
    np.savez(f"{folder}/worker-{worker_index()}.npz", **found)
