"""All features of `unisono.Model`, on any strategy: results as a dict of arrays, to be compared with one device.

`fit.py FOLDER COLLECTIVES [PART ...]`: all parts by default.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import unisono
from unisono.distribute import auto_strategy, is_chief, worker_index

ROWS = 50
random = np.random.default_rng(0)
X = random.normal(size=(ROWS, 5)).astype("float32")
Y = random.integers(0, 3, size=ROWS)
WEIGHT = random.uniform(0.5, 2.0, size=ROWS).astype("float32")
STEPS = random.normal(size=(21, 4, 2)).astype("float32")
STEPS[np.arange(4) >= random.integers(1, 5, size=(21, 1))] = 0.0


EAGER = False  # for all models


class StopOnOneWorker(keras.callbacks.Callback):
    """Only worker 1 decides to stop, after step 3."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and worker_index() == 1:
            self.model.stop_training = True


def classifier(strategy):
    with strategy.scope():
        hidden = keras.layers.Dense(8, activation="tanh")
        model = unisono.Sequential([keras.Input((5,)), hidden, keras.layers.Dense(3)])
        model.compile(
            unisono.optimizers.Adam(0.01, global_clipnorm=0.3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy")],
            run_eagerly=EAGER,
        )
    return model


def flat(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


def arrays(strategy, out, found):
    model = classifier(strategy)
    callbacks = [
        keras.callbacks.CSVLogger(f"{out}/log.csv"),
        keras.callbacks.ModelCheckpoint(f"{out}/keras.keras", save_best_only=True, monitor="val_loss"),
        unisono.callbacks.ModelCheckpoint(f"{out}/ours.keras"),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=0),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.TensorBoard(f"{out}/board", write_graph=False),
        unisono.callbacks.Profiler(f"{out}/profile", steps=(5, 6)),
    ]
    if is_chief():  # as in many programs: the other workers do not have this callback
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None))
    options = {"validation_split": 0.2, "callbacks": callbacks}
    # Neither 15 nor the last 10 samples divide by 4.
    history = model.fit(X, Y, sample_weight=WEIGHT, batch_size=15, epochs=3, verbose=2, **options)
    found.update({f"arrays {name}": values for name, values in history.history.items()})
    found["evaluate"] = model.evaluate(X, Y, sample_weight=WEIGHT, batch_size=16, verbose=0)
    found["predict"] = model.predict(X, batch_size=16, verbose=0)
    found["one sample"] = model.predict_on_batch(X[:1])
    found["on batch"] = [*model.train_on_batch(X[:5], Y[:5]), *model.test_on_batch(X[:2], Y[:2])]
    found["rate"] = model.optimizer.learning_rate.numpy()
    found.update({f"arrays weight {i}": w for i, w in enumerate(model.get_weights())})


def only_inputs(x, y):
    return x


def always(x, y):
    return True


def datasets(strategy, out, found):
    how = {"steps_per_execution": 1 if EAGER else 3, "run_eagerly": EAGER}
    with strategy.scope():
        layers = keras.layers.Masking(), keras.layers.SimpleRNN(3, return_sequences=True)
        model = unisono.Sequential([keras.Input((4, 2)), *layers])
        model.compile(unisono.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], **how)
    data = tf.data.Dataset.from_tensor_slices((STEPS, np.cumsum(STEPS, 1)[..., :1] * np.ones(3, "float32")))
    open_ended = data.batch(8).filter(always)  # of unknown length, the last batch of 5
    history = model.fit(open_ended, epochs=2, verbose=0, shuffle=False, validation_data=data.batch(4).take(3))
    found.update({f"dataset {name}": values for name, values in history.history.items()})
    found["dataset weights"] = flat(model)


def generators(strategy, out, found):
    model = classifier(strategy)

    def batches():
        for first in range(0, ROWS, 16):
            yield X[first : first + 16], Y[first : first + 16]

    history = model.fit(batches(), epochs=1, verbose=0, shuffle=False)
    found["generator loss"] = history.history["loss"]
    found["generator weights"] = flat(model)


def own_rows(strategy, out, found):
    """Each worker reads its own samples; the other workers have more data than worker 0."""

    def rows_of_worker(context):
        pipelines, mine = context.num_input_pipelines, context.input_pipeline_id
        edges = np.linspace(0, 1, pipelines + 1) ** 1.5  # uneven shards
        first, last = (edges[mine : mine + 2] * ROWS).astype(int)
        return tf.data.Dataset.from_tensor_slices((X[first:last], Y[first:last])).batch(6)

    def inputs_of_worker(context):
        return rows_of_worker(context).map(only_inputs)

    model = classifier(strategy)
    history = model.fit(rows_of_worker, epochs=2, verbose=0, shuffle=False, validation_data=rows_of_worker)
    found["own part loss"] = history.history["loss"]
    found["own part val_loss"] = history.history["val_loss"]
    found["own part predict"] = model.predict(inputs_of_worker, verbose=0)
    found["own part weights"] = flat(model)


def rows_of_steps(parts, replicas):
    """The global batches that `own_rows` makes, for one device: a batch of 6 for each replica."""
    size = 6 * replicas
    edges = (np.linspace(0, 1, parts + 1) ** 1.5 * ROWS).astype(int)
    pieces = [list(range(edges[i], edges[i + 1])) for i in range(parts)]
    firsts = range(0, max(map(len, pieces)), size)
    return [[row for piece in pieces for row in piece[first : first + size]] for first in firsts]


def outputs_of_all_kinds(strategy, out, found):
    class Kinds(unisono.Model):
        def call(self, x):
            rows = tf.cast(x[:, 0], tf.int32)
            return {
                "bool": x > 2,
                "text": tf.strings.as_string(rows),
                "byte": tf.cast(x, tf.uint8),
                "ragged": tf.RaggedTensor.from_row_lengths(tf.repeat(rows, rows), rows),
            }

    with strategy.scope():
        model = Kinds()
        model.compile()
    answer = model.predict(np.arange(7.0, dtype="float32")[:, None], batch_size=3, verbose=0)
    found["bool"], found["byte"], found["text"] = answer["bool"], answer["byte"], answer["text"].astype("S")
    found["ragged"] = answer["ragged"].flat_values.numpy()
    found["lengths"] = answer["ragged"].row_lengths().numpy()


def precision(strategy, out, found):
    with strategy.scope():
        model = unisono.Sequential([keras.Input((5,)), keras.layers.Dense(3, dtype="mixed_float16")])
        optimizer = unisono.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, run_eagerly=EAGER)
    found["float16 loss"] = model.fit(X, Y, batch_size=10, epochs=2, verbose=0).history["loss"]
    if is_chief():  # as in the guide
        predictions = np.lib.format.open_memmap(f"{out}/predictions.npy", "w+", "float16", (ROWS, 3))
    for first in range(0, ROWS, 16):
        outputs = model.predict_on_batch(X[first : first + 16])
        if is_chief():
            predictions[first : first + len(outputs)] = outputs
    found["float16 predictions"] = np.array(model.predict(X, verbose=0))
    if is_chief():
        np.testing.assert_array_equal(np.load(f"{out}/predictions.npy"), found["float16 predictions"])


def state_of_replicas(strategy, out, found):
    with strategy.scope():
        layers = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(3)
        model = unisono.Sequential([keras.Input((5,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, run_eagerly=EAGER)
    model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
    found["own weights"] = flat(model)
    found["copies"] = [
        np.concatenate([np.ravel(strategy.experimental_local_results(w.value)[i]) for w in model.weights])
        for i in range(len(strategy.experimental_local_results(model.weights[0].value)))
    ]


def stop_together(strategy, out, found):
    model = classifier(strategy)
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[StopOnOneWorker()])
    found["own stop"] = [len(history.history["loss"]), int(model.optimizer.iterations.numpy())]


TRAINING = arrays, datasets, generators, outputs_of_all_kinds
REPLICAS = precision, state_of_replicas, stop_together, own_rows
PARTS = {part.__name__: part for part in (*TRAINING, *REPLICAS)}


def run(strategy, out, parts=(), eager=False):
    """Runs some parts, all by default; with `eager` the steps run op by op, which is cheapest on one device."""
    global EAGER
    EAGER, found = eager, {}
    for seed, name in enumerate(PARTS, 7):
        if name in (parts or PARTS):
            keras.utils.set_random_seed(seed)
            PARTS[name](strategy, out, found)
    return found


if __name__ == "__main__":
    folder, collectives, *parts = sys.argv[1:]
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=64, timeout_seconds=100, implementation=collectives
    )
    results = run(auto_strategy(options if collectives != "AUTO" else None), folder, parts)
    np.savez(f"{folder}/worker-{worker_index()}.npz", **{k: np.asarray(v) for k, v in results.items()})
