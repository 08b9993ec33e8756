"""Worker 1 calls `fit` with a different argument than worker 0, and each prints the error it receives."""

import sys
import warnings

import keras
import numpy as np
import tensorflow as tf

import unisono
from unisono.distribute import auto_strategy, worker_index

strategy = auto_strategy()
with strategy.scope():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
rows = 20 + worker_index()


def batches(count):
    for _ in range(count):
        yield np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def attempt(name, *arguments, **options):
    try:
        model.fit(*arguments, verbose=0, shuffle=False, **options)
    except (ValueError, TimeoutError) as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
    else:
        print(f"{name}: went through", flush=True)


attempt("samples", np.ones((rows, 2), "float32"), np.ones((rows, 1), "float32"), batch_size=32)
attempt("epochs", np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), epochs=1 + worker_index())
attempt("generator", batches(6 - worker_index()))


def other_model(name, hidden, **options):
    try:
        with strategy.scope():
            other = unisono.Sequential([keras.Input((2,)), *hidden, keras.layers.Dense(1)])
            other.compile(unisono.optimizers.SGD(0.1, **options), "mse")
        other.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), verbose=0)
    except ValueError as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)


me = worker_index()
other_model("width", [keras.layers.Dense(3 + me)])
other_model("activation", [keras.layers.Dense(3, ["relu", "tanh"][me])])
other_model("clipping", [], clipnorm=1.0 + me)


def dataset(first, last, shards=()):
    rows = tf.data.Dataset.range(first, last)
    for number, index in shards:
        rows = rows.shard(number, index)
    return rows.map(lambda i: (tf.ones([2]), tf.ones([1]))).batch(4)


def of_this_worker(context):
    return dataset(0, 16, [(context.num_input_pipelines, context.input_pipeline_id)])


off = tf.data.Options()
off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
attempt("sharded", dataset(0, 16, [(2, me)]))
any_order = tf.data.Options()
any_order.deterministic = False
attempt("sharded and distributed", strategy.experimental_distribute_dataset(dataset(0, 16, [(2, me)])))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    attempt("part for validation", dataset(0, 16, [(2, 1)]))
    attempt("seeded", dataset(0, 16).shuffle(4, seed=1))
    attempt("function", of_this_worker)
    kept = dataset(0, 16, [(2, me)]).with_options(off)
    attempt("sharding off", strategy.experimental_distribute_dataset(kept))
    print("silent:", [str(each.message) for each in seen if "worker 1" in str(each.message)], flush=True)
    attempt("files", dataset(16 * me, 16 * me + 16))
    attempt("unseeded", dataset(0, 16).shuffle(4))
    attempt("seed of the worker", dataset(0, 16).shuffle(4, seed=1 + me))
    attempt("any order", dataset(0, 16).with_options(any_order))
    several = tf.data.Dataset.range(4).interleave(
        lambda i: dataset(4 * i, 4 * i + 4), num_parallel_calls=2, deterministic=False
    )
    attempt("interleaved in any order", several)
    print("orders:", sum("is shuffled differently" in str(each.message) for each in seen), flush=True)
    attempt("own values", np.full((8, 2), me, "float32"), np.ones((8, 1), "float32"))
    attempt("own generator", ((np.full((4, 2), me, "float32"), np.ones((4, 1), "float32")) for _ in range(2)))
    print(
        "warned:", [str(each.message) for each in seen if "differs between" in str(each.message)], flush=True
    )


def values(first):
    x = np.arange(first, first + 16, dtype="float32").reshape(8, 2)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4)


class LocalFile:
    """As a file of the same name on each machine."""

    def __len__(self):
        return 2

    def read(self):
        yield from values(100 * me).as_numpy_iterator()


def of_local_files(context):
    return tf.data.Dataset.from_generator(LocalFile().read, output_signature=values(0).element_spec)


attempt("unsharded function", lambda context: values(0))
attempt("unsharded for validation", of_this_worker, validation_data=lambda context: values(0))
attempt("unsharded on purpose", lambda context: values(0).with_options(off))
attempt("local files", of_local_files)
attempt("same", np.ones((8, 2), "float32"), np.ones((8, 1), "float32"))
assert sys.argv[1]
