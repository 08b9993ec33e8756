"""Correct uses that look unusual: each must work, and also with plain Keras, except those that only Unisono has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uses.bench import COLUMN, NAN, Bench, X, Y, keras, np, rows, tf, unisono, with_loss

V = (X, Y)
CosineDecay = keras.optimizers.schedules.CosineDecay
callbacks, optimizers, Pipeline = unisono.callbacks, unisono.optimizers, unisono.distribute.Pipeline


def fit(**arguments: Any) -> Callable[[Bench], Any]:
    return lambda bench: bench.fit(**arguments)


def compiled(**arguments: Any) -> Callable[[Bench], Any]:
    return lambda bench: bench.compiled(**arguments)


def two(y: Any, **arguments: Any) -> Callable[[Bench], Any]:
    """`fit` of a model with two outputs."""
    return lambda bench: bench.two_outputs(**arguments).fit(X, y, verbose=0)


def labelled(y: Any, loss: Any = "sparse_categorical_crossentropy") -> Callable[[Bench], Any]:
    return lambda bench: with_loss(bench, loss, y)


def checkpoints(name: str, **arguments: Any) -> Callable[[Bench], Any]:
    return called_back(lambda c, b: c.ModelCheckpoint(str(b.folder / name), **arguments))


def made_by(optimizer: Callable[[Any], Any]) -> Callable[[Bench], Any]:
    return lambda bench: bench.compiled(optimizer=optimizer(bench.namespace.optimizers))


def called_back(make: Callable[[Any, Bench], Any]) -> Callable[[Bench], Any]:
    return lambda bench: bench.called_back(make(bench.namespace.callbacks, bench), validation_data=V)


def nested(
    make: Callable[[Any], Any], loss: Any = "sparse_categorical_crossentropy"
) -> Callable[[Bench], Any]:
    """`fit`, `evaluate` and `predict` of a model whose inputs and one output are in a nest, with class numbers."""

    def use(bench: Bench) -> Any:
        inputs = keras.Input((3,))
        model = bench.namespace.Model([inputs], make(keras.layers.Dense(2, "softmax", name="a")(inputs)))
        model.compile("sgd", loss, metrics=["accuracy"])
        classes = np.arange(len(X)) % 2
        model.fit([X], classes, validation_data=([X], classes), class_weight={0: 2.0}, verbose=0)
        return model.evaluate([X], classes, verbose=0), model.predict([X], verbose=0)

    return use


class Nameless(keras.callbacks.Callback):
    """A callback that does not call its base class."""

    def __init__(self) -> None:
        pass


class OwnLogs(keras.callbacks.Callback):
    """A callback that adds a custom log."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["own"] = 1.0


# Accepted by both.
BOTH: dict[str, Callable[[Bench], Any]] = {
    "batch_size of NumPy": fit(batch_size=np.int64(4)),
    "batch_size a tensor": fit(batch_size=tf.constant(4)),
    "batch_size larger than the data": fit(batch_size=1000),
    "epochs of NumPy": fit(epochs=np.int32(1)),
    "epochs a tensor": fit(epochs=tf.constant(1)),
    "no epochs": fit(epochs=0),
    "initial_epoch after the last": fit(initial_epoch=5),
    "steps_per_epoch of NumPy": fit(steps_per_epoch=np.int64(2), batch_size=2),
    "verbose True": fit(verbose=False),
    "verbose of NumPy": fit(verbose=np.int64(0)),
    "verbose 3": fit(verbose=3),
    "shuffle 0": fit(shuffle=0),
    "shuffle None": fit(shuffle=None),
    "shuffle of NumPy": fit(shuffle=np.bool_(True)),
    "shuffle by batches": fit(shuffle="batch"),
    "validation_split of NumPy": fit(validation_split=np.float32(0.5)),
    "validation_split None": fit(validation_split=None),
    "validation_split 0": fit(validation_split=0),
    "validation_data a list": fit(validation_data=[X, Y]),
    "validation_data with weights": fit(validation_data=(X, Y, np.ones(6))),
    "validation_data of more samples": fit(validation_data=(np.ones((9, 3)), np.ones((9, 2)))),
    "validation_data of integers": fit(validation_data=(np.ones((6, 3), int), np.ones((6, 2), int))),
    "validation_data a dataset": fit(validation_data=rows(X, Y).batch(2)),
    "validation_data a dataset of batches": fit(validation_data=rows(X, Y).batch(2, drop_remainder=True)),
    "validation_data a column": fit(validation_data=(X, COLUMN)),
    "validation_steps without data": fit(validation_steps=2),
    "validation_freq a list": fit(validation_data=V, validation_freq=[1, 2]),
    "validation_freq an empty list": fit(validation_data=V, validation_freq=[]),
    "callbacks a tuple": fit(callbacks=(keras.callbacks.History(),)),
    "callbacks alone": fit(callbacks=keras.callbacks.History()),
    "callbacks nested": fit(callbacks=[[keras.callbacks.History()]]),
    "callbacks empty": fit(callbacks=[]),
    "callback without super": fit(callbacks=[Nameless()]),
    "x in a list": fit(x=[X], y=[Y]),
    "x in a dict by name": fit(x={"in": X}),
    "x of integers": fit(x=X.astype(int)),
    "x of booleans": fit(x=X.astype(bool)),
    "x tensors": fit(x=tf.constant(X), y=tf.constant(Y)),
    "y a column for two outputs": fit(y=COLUMN),
    "y NaN": fit(y=np.full((6, 2), NAN)),
    "sample_weight a column": fit(sample_weight=COLUMN),
    "sample_weight of integers": fit(sample_weight=np.ones(6, int)),
    "sample_weight in a list": fit(sample_weight=[np.ones(6)]),
    "class numbers of float": labelled(np.ones(6)),
    "class numbers in a column": labelled(COLUMN),
    "class numbers that are ignored": labelled(
        np.array([0, -1, 1, -1, 0, 1]), keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    ),
    "class numbers all ignored": labelled(
        np.full(6, 9), keras.losses.SparseCategoricalCrossentropy(ignore_class=9)
    ),
    "sample_weight negative": fit(sample_weight=np.full(6, -1.0)),
    "sample_weight 0": fit(sample_weight=np.zeros(6)),
    "class_weight negative": fit(class_weight={0: -1.0}, y=COLUMN),
    "class_weight of no such class": fit(class_weight={7: 2.0}, y=COLUMN),
    "loss_weights by the output's name": compiled(loss_weights={"out": 2.0}),
    "metrics by the output's name": compiled(metrics={"out": ["mae"]}),
    "metric called almost loss": compiled(metrics=[keras.metrics.MeanSquaredError(name="val_error")]),
    "loss class": compiled(loss=keras.losses.MeanSquaredError),
    "loss function": compiled(loss=keras.losses.mean_squared_error),
    "loss by its class name": compiled(loss="MeanSquaredError"),
    "loss short": compiled(loss="mae"),
    "loss in a list": compiled(loss=["mse"]),
    "loss with more arguments": compiled(loss=lambda y, p, extra=1: tf.reduce_mean(y - p)),
    "metric class": compiled(metrics=[keras.metrics.MeanSquaredError]),
    "metric that is a loss": compiled(metrics=[keras.losses.MeanSquaredError()]),
    "metric function": compiled(metrics=[keras.metrics.mean_squared_error]),
    "metrics in lists": compiled(metrics=[["mae"]]),
    "metrics a tuple": compiled(metrics=("mae", "accuracy")),
    "metrics short": compiled(metrics=["acc"], loss="binary_crossentropy"),
    "metrics by a name of their own": compiled(metrics={"nope": ["mae"]}),
    "loss_weights a number": compiled(loss_weights=2.0),
    "loss_weights a tensor": compiled(loss_weights=[tf.constant(2.0)]),
    "one output in a list": nested(lambda output: [output]),
    "one output in a list, its loss too": nested(
        lambda output: [output], ["sparse_categorical_crossentropy"]
    ),
    "one output in a tuple": nested(lambda output: (output,)),
    "one output in a dict": nested(lambda output: {"a": output}),
    "losses of a dict": two({"a": COLUMN, "b": COLUMN}, loss={"a": "mse", "b": "mae"}, as_dict=True),
    "losses by output names": two([COLUMN, COLUMN], loss={"a": "mse", "b": "mae"}),
    "loss of one output of two": two([COLUMN, COLUMN], loss=["mse", None]),
    "loss for all outputs": two((COLUMN, COLUMN), loss="mse"),
    "weights of the losses": two([COLUMN] * 2, loss=["mse", "mae"], loss_weights=[1, np.float32(0.5)]),
    "run_eagerly 1": compiled(run_eagerly=1),
    "run_eagerly None": compiled(run_eagerly=None),
    "jit_compile None": compiled(jit_compile=None),
    "jit_compile of NumPy": compiled(jit_compile=np.bool_(False)),
    "optimizer class name": compiled(optimizer="SGD"),
    "optimizer by its configuration": compiled(optimizer=keras.optimizers.serialize(keras.optimizers.Adam())),
    "no optimizer, to evaluate": lambda b: b.new(optimizer=None).evaluate(X, Y, verbose=0),
    "learning rate 0": made_by(lambda o: o.SGD(0.0)),
    "learning rate from a function": made_by(lambda o: o.SGD(lambda: 0.1)),
    "learning rate from a schedule": made_by(lambda o: o.SGD(CosineDecay(0.1, 10))),
    "learning rate warmed up from 0": made_by(
        lambda o: o.SGD(CosineDecay(0.0, 10, warmup_target=0.1, warmup_steps=2))
    ),
    "learning rate set to a NumPy number": lambda b: setattr(
        b.model.optimizer, "learning_rate", np.float32(0.1)
    ),
    "learning rate set to a tensor": lambda b: setattr(b.model.optimizer, "learning_rate", tf.constant(0.1)),
    "beta 0": made_by(lambda o: o.Adam(beta_1=0.0)),
    "epsilon 0": made_by(lambda o: o.Adam(epsilon=0)),
    "momentum 1": made_by(lambda o: o.SGD(momentum=1.0)),
    "no weight decay": made_by(lambda o: o.AdamW(weight_decay=0)),
    "weight decay False": made_by(lambda o: o.AdamW(weight_decay=False)),
    "clipnorm an int": made_by(lambda o: o.SGD(clipnorm=1)),
    "clipnorm infinite": made_by(lambda o: o.SGD(clipnorm=1e30)),
    "settings of NumPy": made_by(lambda o: o.Adam(beta_1=np.float32(0.9), epsilon=np.float64(1e-7))),
    "accumulation of 0": made_by(lambda o: o.SGD(gradient_accumulation_steps=0)),
    "accumulation of NumPy": made_by(lambda o: o.SGD(gradient_accumulation_steps=np.int64(2))),
    "nesterov 1": made_by(lambda o: o.SGD(momentum=0.9, nesterov=1)),
    "decay of old": made_by(lambda o: o.SGD(decay=0.1)),
    "compile at the end of fit": lambda b: b.fit(
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_end=lambda logs: b.model.compile("sgd", "mse", run_eagerly=True)
            )
        ]
    ),
    "EarlyStopping without patience": called_back(lambda c, b: c.EarlyStopping(patience=0)),
    "EarlyStopping of NumPy": called_back(
        lambda c, b: c.EarlyStopping(patience=np.int64(2), min_delta=np.float32(0))
    ),
    "EarlyStopping in vain": called_back(lambda c, b: c.EarlyStopping("val_loss", patience=10**9)),
    "LearningRateScheduler of two": called_back(
        lambda c, b: c.LearningRateScheduler(lambda epoch, rate: float(rate))
    ),
    "LambdaCallback of all arguments": called_back(
        lambda c, b: c.LambdaCallback(on_epoch_end=lambda *given: None)
    ),
    "LambdaCallback for tests": called_back(lambda c, b: c.LambdaCallback(on_test_end=lambda logs: None)),
    "ReduceLROnPlateau of ints": called_back(lambda c, b: c.ReduceLROnPlateau(factor=0.5, min_lr=0)),
    "ModelCheckpoint in a new folder": checkpoints("new/{epoch:02d}-{val_loss:.2f}.keras"),
    "ModelCheckpoint of weights": checkpoints("{epoch}.weights.h5", save_weights_only=True),
    "ModelCheckpoint of the batch": checkpoints("{epoch}-{batch}.keras", save_freq=1),
    "ModelCheckpoint of an own log": called_back(
        lambda c, b: [OwnLogs(), c.ModelCheckpoint(b.folder / "{own:.1f}.keras")]
    ),
    "ModelCheckpoint to beat infinity": checkpoints("m.keras", initial_value_threshold=float("inf")),
    "CSVLogger": called_back(lambda c, b: c.CSVLogger(str(b.folder / "log.csv"), separator=";", append=True)),
    "TensorBoard by batches": called_back(
        lambda c, b: c.TensorBoard(str(b.folder / "tb"), update_freq="batch")
    ),
}

# Unisono only: plain Keras raises, or does not have it.
OURS: dict[str, Callable[[Bench], Any]] = {
    "x a list of lists": fit(x=X.tolist(), y=Y.tolist()),
    "validation_freq a tuple": fit(validation_data=V, validation_freq=(1, 2)),
    "validation_freq a set": fit(validation_data=V, validation_freq={1, 2}),
    "validation_freq a range": fit(validation_data=V, validation_freq=range(1, 3)),
    "validation_freq an array": fit(validation_data=V, validation_freq=np.array([1, 2])),
    "validation_freq of NumPy": fit(validation_data=V, validation_freq=np.int64(1)),
    "steps_per_execution of NumPy": compiled(steps_per_execution=np.int64(2)),
    "clips of NumPy": made_by(lambda o: o.SGD(gradient_transformers=[o.ClipByNorm(np.float32(1))])),
    "transformers alone": made_by(lambda o: o.SGD(gradient_transformers=o.ClipByNorm(1))),
    "transformers a tuple": made_by(lambda o: o.SGD(gradient_transformers=(o.ClipByNorm(1.0), o.centralize))),
    "transformer of any arguments": made_by(lambda o: o.SGD(gradient_transformers=[lambda *pairs: pairs[0]])),
    "aggregation in bfloat16": lambda b: optimizers.HalfPrecisionAggregation("bfloat16"),
    "save_freq of NumPy": lambda b: callbacks.BackupAndRestore(b.folder / "b", save_freq=np.int64(2)),
    "save_freq False": lambda b: callbacks.BackupAndRestore(b.folder / "b", save_freq=False),
    "backup_dir": lambda b: callbacks.BackupAndRestore(backup_dir=b.folder / "b", double_checkpoint=True),
    "checkpoints every NumPy step": lambda b: callbacks.ModelCheckpoint(
        b.folder / "m.keras", save_freq=np.int64(2)
    ),
    "profile steps in a list": lambda b: callbacks.Profiler(b.folder, steps=[1, 2]),
    "report without path of its own": lambda b: callbacks.TrainingReport(title=3),
    "report of any settings": lambda b: callbacks.TrainingReport(
        config={"lr": np.float32(0.1), "sizes": (1, 2), "nested": {"nan": float("nan")}, "path": b.folder}
    ),
    "pipeline of a tuple": lambda b: Pipeline(("CPU:0", "CPU:1"), np.int64(2)),
    "pipeline in small letters": lambda b: Pipeline(["cpu:0", "/device:CPU:1"], 2),
    "pipeline twice on one device": lambda b: Pipeline(["CPU:0", "CPU:0"], 2, memory_limit=1e9),
    "pipeline of counts": lambda b: Pipeline(["CPU:0", "CPU:1"], 2, partition=(1, 2)),
    "pipeline of names": lambda b: Pipeline(["CPU:0", "CPU:1"], 2, partition=["dense"]),
    "global_mean of integers": lambda b: unisono.distribute.global_mean([1, 2], [1, 0]),
    "loss scale of NumPy": lambda b: optimizers.LossScaleOptimizer(optimizers.SGD(), np.float32(8)),
    "no path for an anomaly": lambda b: callbacks.AnomalyReport(None),
    "no backups": lambda b: callbacks.list_backups(b.folder / "nothing"),
}
