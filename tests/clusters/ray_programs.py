"""What runs in the workers and trials of Ray."""

import functools
import os
import pathlib
import signal
import warnings

import keras
import numpy as np

ROWS = 40


def samples():
    x = np.arange(2.0 * ROWS, dtype="float32").reshape(-1, 2) / 100
    return x, x[:, :1] - x[:, 1:]


@functools.cache
def strategy():
    from unisono.distribute import auto_strategy

    return auto_strategy()


def make_model(rate=0.05):
    import unisono

    keras.utils.set_random_seed(1)
    with strategy().scope():
        model = unisono.Sequential([keras.Input((2,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model.compile(unisono.optimizers.Adam(rate), "mse", jit_compile=False)
    return model


def killed_once(config):
    """Trains four epochs; the second worker is killed in the third, the first time."""
    import ray.train

    import unisono

    folder = pathlib.Path(config["folder"])

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            begun.append(epoch)
            once = folder / "killed"
            if config["kill"] and epoch == 2 and rank == 1 and not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    begun, rank = [], ray.train.get_context().get_world_rank()
    model = make_model()
    model.fit(
        *samples(), batch_size=8, epochs=4, verbose=0, callbacks=[unisono.ray.BackupAndReport(), Kill()]
    )
    np.savez(
        folder / f"{config['kill']}-{rank}.npz",
        begun=begun,
        **{f"w{n}": w for n, w in enumerate(model.get_weights())},
    )


def rejected(method, x, **options):
    """The error of a call, and whether the weights are those from before."""
    model = make_model()
    start = model.get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            getattr(model, method)(x, verbose=0, **options)
        except ValueError as error:
            same = all(np.array_equal(a, b) for a, b in zip(start, model.get_weights()))
            return f"{same}: {error}"
    return "went through"


def shards(config):
    """Gives a shard to `fit` in every form; prints nothing, saves what each said and the samples that were trained."""
    import ray.train
    import ray.train.tensorflow
    import tensorflow as tf

    import unisono

    strategy()  # before any dataset
    rank = ray.train.get_context().get_world_rank()
    shard = ray.train.get_dataset_shard("train")
    as_dataset = shard.to_tf("x", "y", batch_size=4)
    found = {
        "shard": rejected("fit", shard),
        "to_tf": rejected("fit", as_dataset),
        "prepared": rejected("fit", ray.train.tensorflow.prepare_dataset_shard(as_dataset)),
        "batches": rejected("fit", shard.iter_batches(batch_size=4)),
        "evaluate": rejected("evaluate", as_dataset),
        "predict": rejected("predict", as_dataset.map(lambda x, y: x)),
        "generator": rejected("fit", ((each["x"], each["y"]) for each in shard.iter_batches(batch_size=4))),
        "validation": rejected("fit", samples()[0], y=samples()[1], validation_data=as_dataset),
    }

    class Count(keras.layers.Layer):
        """Counts how often each sample was trained."""

        def build(self, shape):
            self.seen = self.add_weight(shape=(ROWS,), initializer="zeros", trainable=False, name="seen")

        def call(self, x):
            rows = tf.cast(tf.round(x[:, :1] * 50), tf.int32)
            self.seen.assign(self.seen + tf.scatter_nd(rows, tf.ones_like(x[:, 0]), [ROWS]))
            return x

    with strategy().scope():
        model = unisono.Sequential([keras.Input((2,)), Count(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    model.fit(unisono.ray.dataset(shard, "x", "y", batch_size=8), verbose=0)
    model.fit(unisono.ray.dataset(as_dataset, batch_size=8), verbose=0)
    found["seen"] = np.array(model.layers[0].seen)
    code = found["to_tf"].split("\n\n")[1:3]
    fixed = make_model()
    exec(
        "\n".join(line[4:] for part in code for line in part.splitlines()), {"x": as_dataset, "model": fixed}
    )
    found["steps"] = int(fixed.optimizer.iterations)
    np.savez(pathlib.Path(config["folder"]) / f"shards-{rank}.npz", **found)


def trial(config):
    """A trial of Ray Tune; its first run fails in the third epoch."""
    import ray.tune

    import unisono

    once = pathlib.Path(config["folder"]) / ray.tune.get_context().get_trial_id()

    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            with open(once, "a") as file:
                file.write(f"{epoch} ")
            if epoch == 2 and once.read_text().count("2") == 1:
                raise RuntimeError("a fault")

    model = make_model(config["rate"])
    callbacks = [unisono.ray.BackupAndReport(), Fail()]
    model.fit(*samples(), batch_size=8, epochs=4, verbose=0, callbacks=callbacks)
