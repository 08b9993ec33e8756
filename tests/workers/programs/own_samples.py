"""Each worker reads its own samples, or the same in its own way, and prints what each method of the model says to that."""

import itertools
import pathlib
import sys
import time
import warnings

import keras
import numpy as np
import tensorflow as tf

import unisono
from unisono.distribute import auto_strategy, worker_index

strategy = auto_strategy()
me = worker_index()
with strategy.scope():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
START = model.get_weights()
SPEC = tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])


def rows(first, count=16):
    x = np.arange(first, first + 2.0 * count, dtype="float32").reshape(-1, 2) / 100
    return x, x[:, :1]


def dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def generated(first, size=4, count=16):
    x, y = rows(first, count)

    def batches():
        for start in range(0, len(x), size):
            yield x[start : start + size], y[start : start + size]

    return batches


def from_python(*arguments):
    return tf.data.Dataset.from_generator(generated(*arguments), output_signature=SPEC)


class Slices(keras.utils.PyDataset):
    def __init__(self, first, length=4, order=range(4), **options):
        super().__init__(**options)
        self.arrays, self.length, self.order = rows(first), length, order

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        number = self.order[number]
        return tuple(part[number * 4 : number * 4 + 4] for part in self.arrays)


def attempt(name, x, y=None, method="fit", **options):
    """Prints how the call ended, whether the weights moved, and its warnings."""
    model.set_weights(START)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            getattr(model, method)(*(x,) if y is None else (x, y), **options)
            ended = "went through"
        except (ValueError, TimeoutError) as error:
            ended = f"{type(error).__name__}: {error}".replace("\n", "|")
    moved = any(np.any(a != b) for a, b in zip(START, model.get_weights()))
    told = [str(each.message).split(".")[0] for each in seen if "worker" in str(each.message)]
    print(f"{name}: {'moved' if moved else 'kept'}: {told}: {ended}", flush=True)


quiet = {"verbose": 0}
attempt("own arrays", *rows(100 * me), **quiet)
late = np.zeros((2**20, 18), "float32")
late[777_777, 3] = me  # a checksum of blocks of a large array misses one number
attempt(
    "one number of a large array", late[:, :2] + late[:, 2:4], np.zeros(len(late)), **quiet, batch_size=2**20
)
attempt("own dataset", dataset(*rows(100 * me)), **quiet)
end = rows(0)
end[0][-1] += me
attempt("last batch", dataset(*end), **quiet)
attempt("last of the given steps", dataset(*end).repeat(), **quiet, steps_per_epoch=4)
attempt("own generator", generated(100 * me)(), **quiet)
attempt("own PyDataset", Slices(100 * me), **quiet)
attempt("own dataset of Python", from_python(100 * me), **quiet)
off = tf.data.Options()
off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
attempt("auto-shard off", from_python(100 * me).with_options(off), **quiet)
attempt("other kind", [dataset(*rows(0)), Slices(0)][me], **quiet)
attempt("other batch size", [dataset(*rows(0)), dataset(*rows(0)).rebatch(2)][me], **quiet, steps_per_epoch=2)
x, y = rows(0)
cuts = [[0, 4, 8, 9, 16], [0, 4, 8, 12, 16]][me]
attempt("other splits", ((x[a:b], y[a:b]) for a, b in itertools.pairwise(cuts)), **quiet)
attempt("other order", *rows(0), **quiet, shuffle=["batch", True][me])
attempt("class weights", rows(0)[0], np.arange(16) % 2, **quiet, class_weight={0: 1.0, 1: 1.0 + me})
attempt("own seed", dataset(*rows(0)).shuffle(4, seed=1 + 5 * me), **quiet)


def late_difference(batch):
    """The same first batches, and another one in the second pass."""
    passes = itertools.count()

    def batches():
        if next(passes) == batch:
            yield from generated(100 * me)()
        else:
            yield from generated(0)()

    return tf.data.Dataset.from_generator(batches, output_signature=SPEC)


attempt("second epoch", late_difference(1), **quiet, epochs=3)
same = dataset(*rows(0))
attempt("validation", same, **quiet, validation_data=dataset(*rows(100 * me)))
attempt("evaluate", from_python(100 * me), **quiet, method="evaluate")
attempt("predict", same.map(lambda x, y: x + 100.0 * me), **quiet, method="predict")
attempt("evaluate arrays", *rows(100 * me), **quiet, method="evaluate")
attempt("train_on_batch", *rows(100 * me), method="train_on_batch")

attempt("paths", same.cache(f"{sys.argv[1]}/cache-{me}"), **quiet)
attempt("constants", same.map(lambda x, y: (tf.where(x < 1e9, x, 1.0 + me), y)), **quiet)
attempt("augmented", same.map(lambda x, y: (x + tf.random.normal([1], seed=7 + me), y)), **quiet)
attempt(
    "everything drawn", same.map(lambda x, y: (x + (r := tf.random.normal([1], seed=7 + me)), y + r)), **quiet
)


def draw(x, y, seed):
    return x + tf.random.normal([1], seed=seed), y


targets = np.zeros([16, 1], "float32")
same_targets = dataset(rows(100 * me)[0], targets).map(lambda x, y: draw(x, y, 7))
attempt("own samples with one target", same_targets, **quiet)
targets[-1] = 1  # the first batches have one target, as where classes are rare
rare = dataset(rows(0)[0], targets).map(lambda x, y: draw(x, y, 7 + me))
attempt("augmented, and a rare target", rare, **quiet)
attempt("own PyDataset in threads", Slices(100 * me, workers=2), **quiet)
attempt("own length of a generator", generated(0, 4, 16 - 4 * me)(), **quiet)
attempt("own length of a PyDataset", Slices(0, 4 - me), **quiet)
attempt("own shuffle of a PyDataset", Slices(0, order=np.random.default_rng(me).permutation(4)), **quiet)
attempt("own length of a later group", itertools.chain(*(generated(0, 4)() for _ in range(5 + me))), **quiet)
attempt("own length of a validation", same, **quiet, validation_data=from_python(0, 4, 16 - 4 * me))
attempt("own length of an evaluation", from_python(0, 4, 16 - 4 * me), **quiet, method="evaluate")
attempt("own length of a known dataset", dataset(*rows(0, 16 - 4 * me)), **quiet, method="evaluate")
attempt("another call", *rows(0), method=["train_on_batch", "test_on_batch"][me])
attempt("same dataset", same, **quiet, epochs=2, validation_data=same)
attempt("same of unknown length", from_python(0), **quiet, epochs=2)
attempt("same of several sizes", from_python(0, 3), **quiet, epochs=2)
attempt("one pass over two epochs", same, **quiet, epochs=2, steps_per_epoch=2)
attempt(
    "same generator", itertools.chain(generated(0)(), generated(0)()), **quiet, epochs=2, steps_per_epoch=3
)
attempt("own samples by a function", lambda context: from_python(100 * me), **quiet)
# A tf.data service, of which worker 0 runs the dispatcher and the server.
place = pathlib.Path(sys.argv[1]) / "dispatcher"
service = tf.data.experimental.service
if me == 0:
    dispatcher = service.DispatchServer()
    server = service.WorkerServer(service.WorkerConfig(dispatcher.target.partition("://")[2]))
    place.with_suffix(".new").write_text(dispatcher.target)
    place.with_suffix(".new").rename(place)
while not place.exists():
    time.sleep(0.05)


def served(mode, job=None, samples=4):
    single = tf.data.Dataset.from_tensor_slices(rows(0))
    return single.apply(service.distribute(mode, place.read_text(), job)).batch(samples)


attempt("dynamic sharding", served("distributed_epoch", "fit"), **quiet)
attempt("one job", served("parallel_epochs", "epochs"), **quiet)
attempt("parallel epochs", served("parallel_epochs"), **quiet)


def of_service(context):
    return served("distributed_epoch", "function", context.get_per_replica_batch_size(4))


attempt("service by a function", of_service, **quiet)
print(
    "losses:", model.evaluate(from_python(0), verbose=0), np.sum(model.predict(same, verbose=0)), flush=True
)
