"""Inputs whose batches depend on more than their position, by name, for tests that interrupt and resume a training run.

Each function builds its input again, as a script does in a new process, after `fresh`.
"""

import functools
import random

import keras
import numpy as np
import tensorflow as tf

import unisono

ROWS, BATCH = 40, 4


def fresh(seed=5):
    """Resets every generator to its state in a new process that sets its seeds."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))


def rows():
    return np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")


def slices():
    return tf.data.Dataset.from_tensor_slices(rows())


def ready(dataset, prefetch=True):
    """Prefetched batches of (x, y)."""
    dataset = dataset.map(lambda row: (row, row[:1])).batch(BATCH)
    return dataset.prefetch(3) if prefetch else dataset


def called(function, dataset=None, **arguments):
    """A pipeline that calls a Python function for each sample."""

    def call(row):
        return tf.ensure_shape(
            tf.numpy_function(lambda r: function(r).astype("float32"), [row], tf.float32), [3]
        )

    return (dataset or slices()).map(call, **arguments)


def from_generator():
    signature = tf.TensorSpec([3])
    return ready(
        tf.data.Dataset.from_generator(lambda: iter(rows()), output_signature=signature).shuffle(8, seed=2)
    )


def from_drawing_generator():
    rng = np.random.default_rng(3)
    signature = tf.TensorSpec([3])
    return ready(
        tf.data.Dataset.from_generator(
            lambda: (row for row in rng.permutation(rows())), output_signature=signature
        )
    )


def from_global_generator_function():
    signature = tf.TensorSpec([3])
    return ready(
        tf.data.Dataset.from_generator(
            lambda: (row for row in np.random.permutation(rows())), output_signature=signature
        )
    )


def py_function():
    def call(row):
        return tf.ensure_shape(tf.py_function(lambda r: tf.sin(r), [row], tf.float32), [3])

    return ready(slices().shuffle(8, seed=5).map(call))


def numpy_in_py_function():
    rng = np.random.default_rng(3)
    return ready(called(lambda row: row + rng.normal()))


def numpy_held_in_object():
    class Augmenter:
        def __init__(self):
            self.parts = {"rng": [np.random.default_rng(3)]}

        def __call__(self, row):
            return row + self.parts["rng"][0].normal()

    return ready(called(Augmenter()))


def numpy_global():
    return ready(called(lambda row: row + np.random.normal()))


def python_global():
    return ready(called(lambda row: row + random.random()))


def numpy_in_parallel():
    rng = np.random.default_rng(3)
    return ready(called(lambda row: row + rng.normal(), num_parallel_calls=2))


def numpy_held_in_parallel():
    rng = {"one": [np.random.default_rng(3)]}

    def draw(row):
        return row + rng["one"][0].normal()

    return ready(called(draw, num_parallel_calls=2))


def in_any_order():
    options = tf.data.Options()
    options.deterministic = False
    return ready(slices().map(lambda row: row + 1, num_parallel_calls=2)).with_options(options)


def interleaved_in_any_order():
    """TensorFlow's object does not keep the order of an `interleave`; its graph does."""
    return ready(slices().interleave(one_row, num_parallel_calls=2, deterministic=False).prefetch(1))


def mapped_in_any_order():
    return ready(slices().map(lambda row: row + 1, num_parallel_calls=2, deterministic=False))


def function_in_any_order():
    return ready(
        slices()
        .batch(4)
        .flat_map(
            lambda rows: tf.data.Dataset.from_tensor_slices(rows).interleave(
                one_row, num_parallel_calls=2, deterministic=False
            )
        )
    )


def one_row(row):
    return tf.data.Dataset.from_tensors(row)


def numpy_global_in_parallel():
    return ready(called(lambda row: row + np.random.normal(), num_parallel_calls=2))


def seeded_layer():
    layer = keras.layers.GaussianNoise(0.5, seed=4)
    return ready(slices().map(lambda row: layer(row, training=True)))


def seeded_layer_in_parallel():
    layer = keras.layers.GaussianNoise(0.5, seed=4)
    return ready(slices().map(lambda row: layer(row, training=True), num_parallel_calls=2))


def unseeded_layer():
    layer = keras.layers.GaussianNoise(0.5)
    return ready(slices().map(lambda row: layer(row, training=True)))


def own_generator():
    generator = tf.random.Generator.from_seed(3)
    return ready(slices().map(lambda row: row + generator.normal([])))


def global_generator():
    generator = tf.random.get_global_generator()
    return ready(slices().map(lambda row: row + generator.normal([])))


def undetermined_generator():
    generator = tf.random.Generator.from_non_deterministic_state()
    return ready(slices().map(lambda row: row + generator.normal([])))


def uniform():
    return ready(slices().map(lambda row: row + tf.random.uniform([])))


def uniform_with_seed():
    return ready(slices().map(lambda row: row + tf.random.uniform([], seed=3)))


def uniform_in_parallel():
    return ready(slices().map(lambda row: row + tf.random.uniform([], seed=3), num_parallel_calls=2))


def image_flip():
    return ready(slices().map(lambda row: tf.image.random_brightness(row[None, :, None], 0.5)[0, :, 0]))


def shuffled():
    return ready(slices().shuffle(8))


def shuffled_and_cached():
    return ready(slices().shuffle(ROWS, seed=5).cache())


def shuffled_over_cache():
    return ready(slices().map(lambda row: row * 2).cache().shuffle(8, seed=5))


def drawn_and_cached():
    return ready(slices().map(lambda row: row + tf.random.uniform([], seed=3)).cache().shuffle(8, seed=5))


def numpy_and_cached():
    rng = np.random.default_rng(3)
    return ready(called(lambda row: row + rng.normal()).cache().shuffle(8, seed=5))


def mixed():
    return ready(
        tf.data.Dataset.sample_from_datasets([slices(), slices().map(lambda r: -r)], [0.5, 0.5], seed=3).take(
            ROWS
        )
    )


def random_dataset():
    numbers = tf.data.Dataset.random(seed=3, rerandomize_each_iteration=True).take(ROWS)
    return ready(numbers.map(lambda n: tf.ones(3) * tf.cast(n % 97, tf.float32) / 97))


def repeated():
    return ready(called(lambda row: np.sin(row), slices().shuffle(8, seed=1).repeat(2)))


def interleaved():
    rng = np.random.default_rng(3)
    return ready(
        tf.data.Dataset.range(3).interleave(
            lambda n: called(lambda row: row + rng.normal()).take(10), cycle_length=3
        )
    )


def ragged_and_sparse():
    """Elements that TensorFlow stores as variants, shuffled and prefetched."""
    ragged = tf.RaggedTensor.from_tensor(rows(), lengths=np.arange(ROWS) % 4)
    sparse = tf.sparse.from_dense(np.maximum(rows(), 0))
    dataset = tf.data.Dataset.from_tensor_slices({"ragged": ragged, "pair": (sparse, ragged)})
    dataset = dataset.shuffle(8, seed=5).batch(BATCH).prefetch(2)
    both = dataset.map(lambda x: x["ragged"].to_tensor(shape=[None, 3]) + tf.sparse.to_dense(x["pair"][0]))
    return both.map(lambda x: (x, x[:, :1]))


class Items(keras.utils.PyDataset):
    def __init__(self, draw, shuffle=None, **arguments):
        super().__init__(**arguments)
        self.draw, self.shuffle, self.order = draw, shuffle, np.arange(ROWS)

    def __len__(self):
        return ROWS // BATCH

    def __getitem__(self, index):
        x = rows()[self.order[index * BATCH : (index + 1) * BATCH]] + np.float32(self.draw(index))
        return x, x[:, :1]

    def on_epoch_end(self):
        if self.shuffle:
            self.shuffle(self.order)


def pydataset():
    return Items(lambda index: index)


def pydataset_numpy_global():
    return Items(lambda index: np.random.normal())


def pydataset_python():
    return Items(lambda index: random.random())


def pydataset_own():
    rng = np.random.default_rng(3)
    return Items(lambda index: rng.normal())


def pydataset_own_in_threads():
    rng = np.random.default_rng(3)
    return Items(lambda index: rng.normal(), workers=2)


def pydataset_tensorflow():
    return Items(lambda index: tf.random.uniform([]).numpy())


def pydataset_keras():
    return Items(lambda index: np.asarray(keras.random.normal([])))


def pydataset_shuffles_itself():
    return Items(lambda index: 0, lambda order: np.random.shuffle(order))


def pydataset_own_shuffle():
    rng = np.random.default_rng(3)
    return Items(lambda index: 0, rng.shuffle)


class Iterable:
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()


def in_batches(values, draw):
    for first in range(0, ROWS, BATCH):
        x = values[first : first + BATCH] + np.float32(draw())
        yield x, x[:, :1]


def iterable_numpy_global():
    return Iterable(lambda: in_batches(rows(), np.random.normal))


def iterable_own():
    rng = np.random.default_rng(3)
    return Iterable(lambda: in_batches(rows(), rng.normal))


def iterable_own_shuffle():
    rng = np.random.default_rng(3)
    return Iterable(lambda: in_batches(rng.permutation(rows()), lambda: 0))


def iterable_global_shuffle():
    return Iterable(lambda: in_batches(np.random.permutation(rows()), lambda: 0))


class Noise(keras.layers.Layer):
    """Draws from a NumPy generator stored in an object."""

    def __init__(self):
        super().__init__()
        self.held = {"noise": [functools.partial(np.random.default_rng(8).normal, 0.0, 0.1)]}

    def call(self, x, training=False):
        if not training:
            return x
        drawn = tf.numpy_function(lambda: np.float32(self.held["noise"][0]()), [], tf.float32)
        return x + tf.ensure_shape(drawn, [])

    def compute_output_shape(self, shape):
        return shape


class Drawing(keras.callbacks.Callback):
    """Changes the learning rate with its own NumPy generator."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(9)

    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.001 + 0.001 * self.rng.random()


def drawing_model():
    """A model with a generator in a layer."""
    layers = [keras.layers.Dense(3), Noise(), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = unisono.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), "mse", jit_compile=False)
    return model


INPUTS = {
    name: value
    for name, value in list(globals().items())
    if callable(value)
    and not name[0].isupper()
    and getattr(value, "__module__", "") == __name__
    and value.__code__.co_argcount == 0
    and name not in ("fresh", "rows", "slices", "drawing_model")
}
