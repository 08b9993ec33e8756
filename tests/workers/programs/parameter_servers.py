# ruff: noqa: E402
"""A coordinator that starts its servers and workers as processes: `parameter_servers.py <scenario> <directory>`.

Each scenario prints one line of JSON with its results, which the test checks.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import traceback
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[2] / "helpers"))
from forked import Forked

from unisono.distribute.launcher.tasks import RequestedCluster, plan

SERVER = pathlib.Path(__file__).with_name("server.py")


class Cluster:
    """Starts the servers; TF_CONFIG of this process becomes the coordinator's."""

    def __init__(self, workers, servers):
        tasks = plan(RequestedCluster(workers=workers, parameter_servers=servers, timeout=600), ["-"])
        self.tasks = {task.name: task for task in tasks}
        chief = self.tasks.pop("chief")
        self.forked = Forked(here=True).__enter__()
        os.environ.update(chief.env)
        self.processes = {}
        for name in self.tasks:
            self.start(name)

    def start(self, name):
        files = {"folder": OUT, "out": f"{OUT}/{name}"}
        self.processes[name] = self.forked.start(SERVER, env=self.tasks[name].env, **files)

    def kill(self, name):
        """Kills a process and waits until it is gone: until then the kernel keeps its port occupied."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def wait_for(self, name):
        kind, index = name.split("-")
        address = json.loads(self.tasks[name].env["TF_CONFIG"])["cluster"][kind][int(index)]
        host, port = address.split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)

    def end(self):
        for name in list(self.processes):
            self.kill(name)


SCENARIO, OUT = sys.argv[1:3]
cluster = (
    Cluster(workers=1, servers=2) if SCENARIO in ("alone", "composite") else Cluster(workers=2, servers=1)
)

import keras
import numpy as np
import tensorflow as tf

import unisono
from unisono.distribute import ParameterServerError
from unisono.distribute.parameter_servers.strategy import ParameterServerStrategy, pool_of
from unisono.distribute.workers import server_watch

FOUND = {}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(230, 12)).astype("float32")
Y = (X[:, 0] > 0).astype("int64") + (X[:, 1] > 0)
IDS = RNG.integers(0, 50, size=(230, 5))


def classifier(optimizer):
    keras.utils.set_random_seed(1)
    normal, dropout = keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)
    hidden, out = keras.layers.Dense(8, "relu"), keras.layers.Dense(3, activation="softmax")
    model = unisono.Sequential([keras.Input((12,)), hidden, normal, dropout, out])
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizer, loss, metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)])
    return model


def embedder(optimizer):
    keras.utils.set_random_seed(1)
    table, pooling = keras.layers.Embedding(50, 4), keras.layers.GlobalAveragePooling1D()
    model = unisono.Sequential([keras.Input((5,), dtype="int64"), table, pooling, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


@keras.saving.register_keras_serializable()
def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred, axis=-1)


def counter(momentum=0.0, **compile_arguments):
    """One weight that each step lowers by 1, or by the momentum update."""
    kernel = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = unisono.Sequential([keras.Input((1,)), kernel])
    model.compile(unisono.optimizers.SGD(1.0, momentum), mean_output, **compile_arguments)
    return model


def distance(model, other):
    pairs = zip(*(each.get_weights() + each.optimizer.get_weights() for each in (model, other)))
    return max(float(np.max(np.abs(np.float64(a) - np.float64(b)), initial=0.0)) for a, b in pairs)


class AddsUp(unisono.Sequential):
    """Custom steps for any batch, and a metric whose result is its variable."""

    def __init__(self):
        super().__init__([keras.layers.Dense(1, kernel_initializer="ones")])
        self.rows = Rows()

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        self.rows.update_state(self(x))
        return {"rows": self.rows.result()}

    def predict_step(self, data):
        assert tf.is_tensor(data)
        return self(data)


class Rows(keras.Metric):
    def __init__(self):
        super().__init__(name="rows")
        self.total = self.add_variable((), "zeros")

    def update_state(self, x):
        self.total.assign_add(tf.cast(tf.shape(x)[0], tf.float32))

    def result(self):
        return self.total


def four_parts():
    return tf.data.Dataset.from_tensor_slices((X, X, Y, {"a": Y})).batch(16)


def alone():
    """One worker and partitioned variables: everything matches one device bit for bit."""
    thirds = tf.distribute.experimental.partitioners.FixedShardsPartitioner(3)
    strategy = ParameterServerStrategy(variable_partitioner=thirds)
    callbacks = lambda: [  # noqa: E731
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.EarlyStopping("val_loss", patience=1),
        unisono.callbacks.ModelCheckpoint(f"{OUT}/best.keras", save_freq=7),
    ]
    histories = []
    models = []
    for scope in (strategy.scope, tf.init_scope):
        with scope():
            models.append(classifier(unisono.optimizers.Adam(1e-2, clipnorm=0.5)))
        # Divisible: otherwise one device has an unknown batch size, and Grappler rounds differently if it knows the size.
        data: dict = {"x": X[:224], "y": Y[:224], "validation_data": (X[:48], Y[:48])}
        history = models[-1].fit(**data, batch_size=16, epochs=3, verbose=0, callbacks=callbacks())
        histories.append(history.history)
    FOUND["fit_distance"], FOUND["same_history"] = distance(*models), histories[0] == histories[1]
    FOUND["predict"] = float(np.abs(models[0].predict(X, verbose=0) - models[1].predict(X, verbose=0)).max())
    FOUND["batch"] = [model.train_on_batch(X[:9], Y[:9]) for model in models]
    FOUND["own_steps"] = []
    for scope in (strategy.scope, tf.init_scope):
        with scope():
            model = AddsUp()
            model.compile(unisono.optimizers.SGD(0.1))
        history = model.fit(X, batch_size=16, epochs=2, verbose=0, shuffle=False).history
        history["lone"] = model.train_on_batch(X[:9], return_dict=True)["rows"]
        history["four"] = model.fit(four_parts(), verbose=0).history["rows"]
        history["predicted"] = float(np.sum(model.predict(X, verbose=0)))
        FOUND["own_steps"].append({name: np.asarray(value).tolist() for name, value in history.items()})

    target = RNG.normal(size=(230, 1)).astype("float32")
    with strategy.scope():
        model = embedder(unisono.optimizers.Adam(1e-2))
    model.fit(IDS[:224], target[:224], batch_size=16, epochs=2, verbose=0)
    other = embedder(unisono.optimizers.Adam(1e-2))
    other.fit(IDS[:224], target[:224], batch_size=16, epochs=2, verbose=0)
    FOUND["split_distance"] = distance(model, other)
    table = model.layers[0].embeddings
    FOUND["shards"] = len(table.value.variables)
    slots = [slot for slot in model.optimizer.variables if tuple(slot.shape) == tuple(table.shape)]
    FOUND["split_names"] = [variable.value.name == f"{variable.path}:0" for variable in (table, *slots)]
    FOUND["slots_beside"] = all(
        [shard.device for shard in slot.value.variables] == [shard.device for shard in table.value.variables]
        for slot in slots
    )
    model.save(f"{OUT}/split.keras")
    on_one = unisono.load_model(f"{OUT}/split.keras")
    with scope_of_halves(strategy):
        in_halves = unisono.load_model(f"{OUT}/split.keras")
    FOUND["loaded_shards"] = len(in_halves.layers[0].embeddings.value.variables)
    FOUND["loaded_distance"] = max(distance(model, on_one), distance(model, in_halves))

    runs = []
    for epochs in ((4,), (2, 4)):
        for last in epochs:
            keras.backend.clear_session()  # a restarted script gives its variables the same names
            with strategy.scope():
                model = classifier(unisono.optimizers.SGD(1e-2, momentum=0.9))
            backup = unisono.callbacks.BackupAndRestore(f"{OUT}/{len(epochs)}", 5, delete_when_done=False)
            model.fit(X, Y, batch_size=16, epochs=last, verbose=0, callbacks=[backup])
        runs.append(model)
    FOUND["resumed_distance"] = distance(*runs)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = keras.Variable(np.zeros(2, "float32"))
        optimizer = unisono.optimizers.SGD(1.0)
    data = coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.from_tensors(tf.ones(2)).repeat())

    @tf.function
    def step(iterator):
        def on_replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.convert_to_tensor(weight) * x)
            optimizer.minimize(loss, [weight], tape=tape)

        strategy.run(on_replica, args=(next(iterator),))

    iterator = iter(data)
    for _ in range(50):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    FOUND["custom_loop"] = [*weight.numpy().tolist(), int(optimizer.iterations.numpy())]


def recommender():
    """Lookups by ragged and by sparse numbers in one table, and a `Dense` layer of sparse features."""
    keras.utils.set_random_seed(1)
    history = keras.Input((None,), ragged=True, dtype="int64", name="history")
    tags = keras.Input((4,), sparse=True, dtype="int64", name="tags")
    features = keras.Input((6,), sparse=True, name="features")
    table, pool = keras.layers.Embedding(50, 4), keras.layers.Lambda(lambda x: tf.reduce_sum(x, 1))
    pooled = keras.layers.Add()([pool(table(history)), pool(table(tags)), keras.layers.Dense(4)(features)])
    model = unisono.Model([history, tags, features], keras.layers.Dense(1)(pooled))
    model.compile(unisono.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model


def composite():
    """Ragged and sparse arrays, with variables in three parts; `fit` is called in the scope."""
    thirds = tf.distribute.experimental.partitioners.FixedShardsPartitioner(3)
    strategy = ParameterServerStrategy(variable_partitioner=thirds)
    lengths = RNG.integers(0, 5, 48)
    x = {
        "history": tf.RaggedTensor.from_row_lengths(RNG.integers(-50, 50, lengths.sum()), lengths),
        "tags": tf.sparse.from_dense((RNG.random((48, 4)) < 0.5) * RNG.integers(1, 50, (48, 4))),
        "features": tf.sparse.from_dense(
            (RNG.random((48, 6)) < 0.5) * RNG.normal(size=(48, 6)).astype("float32")
        ),
    }
    data = tf.data.Dataset.from_tensor_slices((x, RNG.normal(size=(48, 1)).astype("float32"))).batch(16)
    models, results = [], []
    for scope in (strategy.scope, contextlib.nullcontext):
        with scope():
            models.append(recommender())
            history = models[-1].fit(data, epochs=2, verbose=0).history
            results.append([history, models[-1].evaluate(data, verbose=0)])
            results[-1].append(np.ravel(models[-1].predict(data, verbose=0)).tolist())
    found = [
        np.array([*history["loss"], *history["mae"], *rest, *outputs]) for history, rest, outputs in results
    ]
    FOUND["distances"] = [distance(*models), float(np.abs(found[0] - found[1]).max())]


def scope_of_halves(strategy):
    """The scope of the same cluster with another partitioner."""
    halves = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy.extended._variable_partitioner = halves
    return strategy.scope()


def together():
    """Two workers: counts, convergence, mixed precision, errors; finally the server dies."""
    strategy = ParameterServerStrategy(max_staleness=3)
    with strategy.scope():
        model = counter()
    ones = np.ones((2000, 1), "float32")
    history = model.fit(ones, ones, batch_size=1, epochs=1, verbose=0)
    count = int(model.optimizer.iterations.numpy())
    FOUND["counts"] = [count, float(model.get_weights()[0][0, 0]), float(model._loss_tracker.count.numpy())]
    FOUND["loss"] = history.history["loss"][0]

    with strategy.scope():  # more steps per call than max_staleness allows a worker at once
        model = counter(momentum=0.5, steps_per_execution=8)
    model.fit(ones[:300], ones[:300], batch_size=1, epochs=1, verbose=0)
    velocity = weight = 0.0
    for _ in range(300):
        velocity = 0.5 * velocity - 1.0
        weight += velocity
    FOUND["momentum"] = [float(model.get_weights()[0][0, 0]), weight]

    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")

    accuracies = []
    for scope in (strategy.scope, tf.init_scope):
        keras.utils.set_random_seed(1)
        with scope():
            layers = [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
            model = unisono.Sequential(layers)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(unisono.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
        model.fit(images[:1400], labels[:1400], batch_size=32, epochs=6, verbose=0)
        accuracies.append(model.evaluate(images[1400:], labels[1400:], verbose=0)[1])
    FOUND["accuracy"] = accuracies

    with strategy.scope():
        inner = unisono.optimizers.SGD(0.0)
        optimizer = unisono.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**15)
        kernel = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = unisono.Sequential([keras.Input((1,)), kernel])
        model.compile(optimizer, mean_output, auto_scale_loss=False)
    rows = ones[:40].copy()
    rows[::10] = np.inf
    model.fit(rows, rows, batch_size=1, epochs=1, verbose=0, shuffle=False)
    numbers = inner.iterations, optimizer.skipped_steps, optimizer.dynamic_scale
    FOUND["overflow"] = [float(number.numpy()) for number in numbers]

    class Picky(keras.layers.Layer):
        def call(self, x):
            tf.debugging.assert_less(tf.reduce_max(x), 2.0, message="a message of their own")
            return x

    with strategy.scope():
        picky = unisono.Sequential([keras.Input((1,)), Picky(), keras.layers.Dense(1)])
        picky.compile("sgd", "mse")
    try:
        picky.fit(3 * ones[:50], ones[:50], batch_size=1, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        FOUND["own_error"] = ["a message of their own" in str(error), __file__ in str(error)]
    FOUND["after_error"] = len(picky.fit(ones[:50], ones[:50], batch_size=5, verbose=0).history["loss"])

    loop_of_their_own(strategy)

    class EndOfServer(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            cluster.kill("ps-0")

    try:
        picky.fit(ones, ones, batch_size=10, epochs=50, verbose=0, callbacks=[EndOfServer()])
    except ParameterServerError as error:
        FOUND["server_error"] = str(error)


def loop_of_their_own(strategy):
    """200 scheduled steps on two workers: a partitioned table, `tape.gradient`, a metric, a state, random numbers."""
    with scope_of_halves(strategy):
        table = keras.layers.Embedding(10, 3, embeddings_initializer="zeros")
        table.build()
        optimizer, seen = unisono.optimizers.SGD(1.0), keras.metrics.Mean()
        dropout, calls = keras.layers.Dropout(0.5), keras.Variable(0, dtype="int32", trainable=False)
    drawn = dropout.seed_generator.state.numpy()

    @unisono.replica_step
    def replica_step(ids):
        with tf.GradientTape() as tape:
            rows = table(ids)
            loss = unisono.distribute.global_mean(tf.reduce_sum(rows, axis=1)) * 4.0
        gradients = tape.gradient(loss, table.trainable_variables)
        optimizer.apply_gradients(zip(gradients, table.trainable_variables))
        seen.update_state(tf.constant([2.0, 4.0]))
        calls.assign_add(1)
        dropout(rows, training=True)

    @tf.function
    def step(iterator):
        strategy.run(replica_step, args=(next(iterator),))

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    ids = lambda: tf.data.Dataset.from_tensors(tf.constant([0, 4, 5, 9])).repeat()  # noqa: E731
    iterator = iter(coordinator.create_per_worker_dataset(ids))
    for _ in range(200):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    parts = table.embeddings.value.variables
    FOUND["own_loop"] = {
        "table": np.concatenate([part.numpy() for part in parts]).sum(axis=1).tolist(),
        "parts": len(parts),
        "metric": [float(seen.count.numpy()), float(seen.result())],
        "calls": int(calls.numpy()),
        "draws": int((dropout.seed_generator.state.numpy() - drawn)[1]),
    }


def killed():
    """Workers are killed ten times during training, and once during evaluation; then one does not come back."""
    strategy = ParameterServerStrategy()
    with strategy.scope():
        model = counter()
    ones = np.ones((200, 1), "float32")
    ended = threading.Event()
    kills = []

    def attacker(times, pause):
        for number in range(times):
            name = f"worker-{number % 2}"
            cluster.kill(name)
            kills.append(name)
            cluster.start(name)
            cluster.wait_for(name)
            if ended.wait(pause):
                return

    thread = threading.Thread(target=attacker, args=(10, 0.3))

    class UntilAllAreKilled(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.counts = []
            thread.start()

        def on_epoch_end(self, epoch, logs=None):
            self.counts.append(int(self.model.optimizer.iterations.numpy()))
            if not thread.is_alive() and epoch >= 9:
                self.model.stop_training = True

    callback = UntilAllAreKilled()
    history = model.fit(ones, ones, batch_size=1, epochs=5000, verbose=0, callbacks=[callback])
    ended.set()
    thread.join()
    epochs = len(history.history["loss"])
    FOUND["kills"] = len(kills)
    FOUND["counts"] = [callback.counts == [200 * (e + 1) for e in range(epochs)], epochs >= 10]
    FOUND["weight_error"] = abs(float(model.get_weights()[0][0, 0]) + 200 * epochs)

    data = RNG.normal(size=(4000, 1)).astype("float32")
    expected = model.evaluate(data, data, batch_size=8, verbose=0, steps=500)
    ended.clear()
    thread = threading.Thread(target=attacker, args=(1, 0.0))

    class KillInTheMiddle(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            if batch > 30 and thread.ident is None:
                thread.start()

    found = model.evaluate(data, data, batch_size=8, verbose=0, callbacks=[KillInTheMiddle()])
    thread.join()
    FOUND["evaluate"] = [expected, found]
    predicted, weight = model.predict(data, batch_size=8, verbose=0), model.get_weights()[0][0, 0]
    FOUND["predict_error"] = float(np.abs(predicted - data * weight).max() / abs(weight))

    cluster.kill("worker-1")
    before = int(model.optimizer.iterations.numpy())
    model.fit(ones, ones, batch_size=1, epochs=2, verbose=0)
    FOUND["without_one"] = int(model.optimizer.iterations.numpy()) - before


def resumed():
    """In the first run all processes are killed in the middle of the second epoch; the second run resumes."""
    steps = []

    class EndOfEverything(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)
            if not os.path.exists(f"{OUT}/ended once") and self.model.fit_state.epoch == 1 and batch > 150:
                open(f"{OUT}/ended once", "w").close()
                cluster.end()
                os.kill(os.getpid(), signal.SIGKILL)

    strategy = ParameterServerStrategy()
    with strategy.scope():
        model = counter()
    ones = np.ones((200, 1), "float32")
    backup = unisono.callbacks.BackupAndRestore(f"{OUT}/backup", save_freq=20)
    history = model.fit(ones, ones, batch_size=1, epochs=3, verbose=0, callbacks=[backup, EndOfEverything()])
    FOUND["steps"] = len(steps)
    FOUND["counts"] = [int(model.optimizer.iterations.numpy()), float(model.get_weights()[0][0, 0])]
    FOUND["counted"] = float(model._loss_tracker.count.numpy())
    FOUND["epochs"] = history.epoch


def watched():
    """Monitoring callbacks work here too, and so do float16 and custom steps."""
    strategy = ParameterServerStrategy()
    with strategy.scope():
        model = classifier(unisono.optimizers.Adam(1e-2))
    looking = [
        unisono.callbacks.TrainingReport(f"{OUT}/report.html"),
        unisono.callbacks.TensorBoard(f"{OUT}/board", histogram_freq=1, update_freq=5),
        unisono.callbacks.CSVLogger(f"{OUT}/log.csv"),
        unisono.callbacks.AnomalyReport(f"{OUT}/anomaly.json"),
    ]
    data = {"batch_size": 16, "verbose": 0, "validation_data": (X[:50], Y[:50])}
    model.fit(X, Y, epochs=2, callbacks=looking, **data)
    with open(f"{OUT}/report.jsonl") as lines:
        events = [json.loads(line) for line in lines]
    FOUND["report"] = [sum(event.get("steps", 0) for event in events), os.path.exists(f"{OUT}/report.html")]
    FOUND["csv"] = len(pathlib.Path(f"{OUT}/log.csv").read_text().splitlines())
    FOUND["board"] = sorted(tags(f"{OUT}/board"))
    FOUND["anomaly_where_none_is"] = os.path.exists(f"{OUT}/anomaly.json")

    broken = X.copy()
    broken[100] = np.nan
    anomaly = unisono.callbacks.AnomalyReport()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(broken, Y, epochs=3, callbacks=[anomaly], batch_size=16, verbose=0)
    FOUND["anomaly"] = [
        bool(anomaly.report and anomaly.report["gradients"]),
        all(np.isfinite(w).all() for w in model.get_weights()[:4]),
        [str(w.message) for w in caught if w.category.__name__ == "AnomalyWarning"],
    ]

    unisono.mixed_precision.set_global_policy("mixed_float16")
    with strategy.scope():
        model = counter()
    ones = np.ones((400, 1), "float32")
    history = model.fit(ones, ones, batch_size=1, verbose=0)
    FOUND["float16"] = [
        int(model.optimizer.inner_optimizer.iterations.numpy()),
        float(model.get_weights()[0][0, 0]),
        model.layers[0].compute_dtype,
        history.history["loss_scale"][-1],
    ]
    unisono.mixed_precision.set_global_policy("float32")

    class Own(unisono.Sequential):
        def __init__(self):
            super().__init__([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
            self.total = keras.metrics.Sum(name="total")

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(x, training=True))
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
            self.total.update_state(x)
            tf.summary.scalar("written_by_nobody", loss, step=0)
            return {"sum_under_another_name": self.total.result(), "last": tf.reduce_max(x)}

    with strategy.scope():
        model = Own()
        model.compile(unisono.optimizers.SGD(0.0))
    board = unisono.callbacks.TensorBoard(f"{OUT}/own", update_freq=1)
    history = model.fit(ones, ones, batch_size=4, verbose=0, callbacks=[board])
    FOUND["own_board"] = sorted(tags(f"{OUT}/own") - {"keras"})
    FOUND["custom_step"] = history.history

    pool, stopped, answers = pool_of(strategy), [], server_watch.answers
    pool.timeout = 4.0
    server_watch.answers = lambda *who: not stopped or answers(*who)  # before that it is only slow

    class Stopped(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            os.kill(cluster.processes["ps-0"].pid, signal.SIGSTOP)
            stopped.append("ps-0")
            self.model.get_weights()

    try:
        model.fit(ones, ones, batch_size=4, verbose=0, callbacks=[Stopped()])
    except ParameterServerError as error:
        FOUND["hangs"] = str(error)
    os.kill(cluster.processes["ps-0"].pid, signal.SIGCONT)
    pool.timeout = 600.0
    FOUND["after_hanging"] = model.fit(ones, ones, batch_size=4, verbose=0).history["last"]


def tags(directory):
    """The tags in TensorBoard's files."""
    from tensorflow.core.util import event_pb2

    found = set()
    for file in pathlib.Path(directory).rglob("*tfevents*"):
        for record in tf.data.TFRecordDataset(str(file)):
            found.update(value.tag for value in event_pb2.Event.FromString(record.numpy()).summary.value)
    return found


code = 1
try:
    globals()[SCENARIO]()
    print("FOUND " + json.dumps(FOUND), flush=True)
    code = 0
except BaseException:
    traceback.print_exc()
    print("FOUND SO FAR " + json.dumps(FOUND), file=sys.stderr)
    for name, process in cluster.processes.items():
        text = pathlib.Path(OUT, name).read_text()
        print(f"--- {name}, ended: {process.poll()}:\n{text[-1000:]}", file=sys.stderr, flush=True)
finally:
    cluster.end()
    os._exit(code)  # TensorFlow would wait for servers that are gone
