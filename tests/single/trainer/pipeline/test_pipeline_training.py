"""A model trained in pipeline stages matches the model on a single device, whatever its structure."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.distribute.pipeline import Pipeline
from unisono.distribute.pipeline.schedule import SCHEDULES
from unisono.trainer.pipeline.engine import PipelinedStep
from unisono.trainer.pipeline.micro_batches import micro_steps
from unisono.trainer.pipeline.planning.graph import Chain

layers = keras.layers
ROWS, FEATURES, CLASSES = 13, 6, 3

# The norm of the gradient of `golden_model` on `golden_data`, from one tape over the entire model.
GOLDEN_NORM = 4.169965669442148


def golden_model(model_class: Any = keras.Model) -> keras.Model:
    """Skip connections within and across stages, operations outside layers, two kinds of penalties."""
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(7)
    inputs = keras.Input((FEATURES,))
    a = layers.Dense(8, activation="tanh", name="a")(inputs)
    b = layers.Dense(8, activation="tanh", name="b", kernel_regularizer="l2")(a)
    c = layers.Add(name="c")([a, b])
    d = layers.Dense(7, name="d", activity_regularizer="l2")(c)
    e = keras.ops.tanh(d) + 1.0
    f = layers.Concatenate(name="f")([e, a])
    return model_class(inputs, layers.Dense(CLASSES, name="o")(f))


def golden_data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(rows, FEATURES)), rng.normal(size=(rows, CLASSES))


@pytest.mark.long
def test_gradient_norm_is_golden_for_all_stages_micro_batches_schedules_and_rematerialization():
    model = golden_model()
    chain = Chain(model)
    x, y = map(tf.constant, golden_data())
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y)) + tf.add_n(model.losses)
    plain = tape.gradient(loss, model.trainable_variables)
    assert float(tf.linalg.global_norm(plain)) == pytest.approx(GOLDEN_NORM, rel=1e-12)
    partitions = {1: [6], 2: [3, 3], 3: [2, 2, 2], 4: [1, 2, 2, 1]}
    for case in itertools.product(partitions.values(), [1, 2, 4, 8], SCHEDULES, [False, True]):
        # The entire matrix eagerly, and part of it as a graph: tracing all of it would take minutes.
        in_graph = case[1] == 4 and len(case[0]) == 3
        found, gradients = golden_step(chain, x, y, *case, in_graph=in_graph)
        assert float(tf.linalg.global_norm(gradients)) == pytest.approx(GOLDEN_NORM, rel=1e-12), case
        assert float(found) == pytest.approx(float(loss), rel=1e-12), case
        helpers.assert_close(gradients, plain, helpers.FLOAT64, str(case))


def golden_step(chain, x, y, sizes, count, schedule, rematerialize, in_graph):
    """Loss and gradients of one pipelined step."""
    stages = chain.cut(sizes)
    for stage in stages:
        stage.devices = [f"CPU:{stage.index}"]
    edges = [q * ROWS // count for q in range(count + 1)]

    def head(q: int | None, outputs: tf.Tensor) -> tf.Tensor:
        part = slice(None) if q is None else slice(edges[q], edges[q + 1])
        return tf.reduce_sum(tf.square(outputs - y[part])) / (ROWS * CLASSES)

    def step() -> Any:
        parts = [x[first:last] for first, last in itertools.pairwise(edges)]
        run = PipelinedStep(chain, stages, parts, micro_steps(ROWS, count))
        jobs = SCHEDULES[schedule](len(sizes), count)
        result = run.train(jobs, head, schedule == "1f1b", rematerialize)
        return result.loss, [result.gradients[id(v)] for v in chain.model.trainable_variables]

    return tf.function(step, autograph=False)() if in_graph else step()


def pipeline(stages: int, micro_batches: int, replicas: int = 1, **kwargs: Any) -> Pipeline:
    devices = [f"CPU:{i}" for i in range(stages * replicas)]
    return Pipeline(devices, micro_batches, replicas=replicas, **kwargs)


def train(build: Any, compiled: Any, fit: Any, on: Any, evaluate: bool = False, eager: bool = False) -> Any:
    """All results of a training program: weights, history, evaluation, predictions."""
    keras.utils.set_random_seed(3)
    with contextlib.nullcontext() if on is None else on.scope():
        model = build()
        model.compile(**compiled(), run_eagerly=eager)
    history = model.fit(verbose=0, **{"batch_size": 4, "epochs": 1, **fit}).history
    shown = [model.get_weights(), [v.numpy() for v in model.optimizer.variables], history]
    if evaluate:
        x, y = fit["x"], fit["y"]
        shown.append(model.evaluate(x, y, batch_size=5, verbose=0))
        shown.append(model.predict(x, batch_size=7, verbose=0))
    return shown


def _golden_program(batch_size: int = 16, epochs: int = 5) -> tuple[Any, Any, dict[str, Any]]:
    x, y = golden_data(50)

    def compiled():
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.3)
        return {"optimizer": optimizer, "loss": "mse", "metrics": ["mae"]}

    fit = {"x": x, "y": y, "batch_size": batch_size, "epochs": epochs}
    return lambda: golden_model(unisono.Model), compiled, fit


@pytest.mark.long
def test_weights_after_20_steps_with_a_partial_batch_are_those_of_one_device():
    plain = train(*_golden_program(), on=None, eager=True)
    named = pipeline(3, 4, schedule="1f1b", rematerialize=True, partition=["b", "f"])
    counted = pipeline(2, 3, replicas=2, rematerialize=True, partition=[2, 4])
    for each, eager in ((named, False), (counted, True)):
        helpers.assert_close(train(*_golden_program(), on=each, eager=eager), plain, helpers.FLOAT64)


def _sequence(rows: int = 11) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    words = rng.integers(1, 20, size=(rows, 5))
    for row, length in enumerate(rng.integers(1, 6, size=rows)):
        words[row, length:] = 0
    return words, rng.integers(0, CLASSES, size=(rows, 5))


def masked_tagger() -> keras.Model:
    words = keras.Input((5,), dtype="int32"), layers.Embedding(20, 4, mask_zero=True)
    return unisono.Sequential([*words, layers.Dense(4, activation="tanh"), layers.Dense(CLASSES)])


def branches() -> keras.Model:
    """Two inputs, the second first used late; two outputs, one from the first stage."""
    left, right = keras.Input((FEATURES,), name="left"), keras.Input((2,), name="right")
    a = layers.Dense(5, activation="tanh", name="a")(left)
    early = layers.Dense(1, name="early")(a)
    b = layers.Dense(5, activation="tanh", name="b")(a)
    nested = keras.Sequential([layers.Dense(4, activation="tanh"), layers.Dense(3)], name="nested")(b)
    late = layers.Dense(CLASSES, name="late")(layers.Concatenate(name="join")([nested, right, a]))
    return unisono.Model([left, right], {"early": early, "late": late})


class TwoEnds(layers.Layer):
    """A block as a class, with two outputs."""

    def __init__(self):
        super().__init__(name="two_ends")
        self.inner = layers.Dense(4, activation="tanh")

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return {"hidden": self.inner(x), "pair": (x * 2.0, keras.ops.sum(x, axis=-1, keepdims=True))}


def blocks() -> keras.Model:
    """Outputs of a block and of an operation over one cut, a nested model with two outputs; adopted."""
    inputs = keras.Input((FEATURES,))
    left, right = keras.ops.split(layers.Dense(6, name="first")(inputs), 2, axis=-1)
    ends = TwoEnds()(layers.Dense(5, activation="tanh", name="second")(left))
    start = keras.Input((4,))
    inner = keras.Model(start, [layers.Dense(3)(start), layers.Dense(2)(start)], name="inner")
    joined = layers.Concatenate(name="join")([*inner(ends["hidden"]), *ends["pair"], right])
    return unisono.adopt(keras.Model(inputs, layers.Dense(CLASSES, name="out")(joined)))


class OwnLoss(unisono.Model):
    """Its loss depends on the entire batch."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        spread = keras.ops.std(keras.ops.mean(y_pred, axis=0))
        return super().compute_loss(x, y, y_pred, sample_weight) + spread


def own_loss_model() -> keras.Model:
    inputs = keras.Input((FEATURES,))
    hidden = layers.Dense(5, activation="tanh", kernel_regularizer="l2")(inputs)
    return OwnLoss(inputs, layers.Dense(CLASSES)(hidden))


def classifier() -> keras.Model:
    hidden, out = layers.Dense(5, activation="tanh"), layers.Dense(CLASSES, activation="softmax")
    return unisono.Sequential([keras.Input((FEATURES,)), hidden, out])


class Normed(layers.Dense):
    """Stores the norm of its kernel and divides by it: the gradient does not flow through the write."""

    def build(self, shape):
        super().build(shape)
        self.norm = self.add_weight(shape=(), initializer="ones", trainable=False, name="norm")

    def call(self, x, training=False):
        if training:
            self.norm.assign(0.9 * self.norm + keras.ops.sum(keras.ops.square(self.kernel)))
        return super().call(x) / self.norm


def normed() -> keras.Model:
    inputs = keras.Input((FEATURES,))
    hidden = Normed(5, activation="tanh", name="hidden")(inputs)
    return unisono.Model(inputs, Normed(CLASSES, name="out")(hidden))


def _cases() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    rng = np.random.default_rng(1)
    words, tags = _sequence()
    x, y = golden_data(11)
    classes = rng.integers(0, CLASSES, size=11)
    weight = rng.uniform(0, 2, size=11)
    crossentropy = keras.losses.SparseCategoricalCrossentropy
    of_weights = {"reduction": "mean_with_sample_weight"}
    data, weighted = {"x": x, "y": y}, {"x": x, "y": classes, "sample_weight": weight}
    two = {"early": y[:, :1], "late": y}
    return {
        "masks": (
            masked_tagger,
            lambda: {
                "optimizer": "adam",
                "loss": crossentropy(from_logits=True),
                "weighted_metrics": ["accuracy"],
            },
            {"x": words, "y": tags},
        ),
        "weights": (
            classifier,
            lambda: {
                "optimizer": "sgd",
                "loss": crossentropy(**of_weights),
                "weighted_metrics": ["accuracy"],
            },
            weighted,
        ),
        "class weights": (
            classifier,
            lambda: {"optimizer": keras.optimizers.SGD(0.1, 0.9, clipnorm=0.1), "loss": crossentropy()},
            {"x": x, "y": classes, "class_weight": {0: 2.0, 1: 0.5, 2: 1.0}, "batch_size": 6},
        ),
        "branches": (
            branches,
            lambda: {
                "optimizer": "adam",
                "loss": {"early": "mae", "late": "mse"},
                "loss_weights": {"early": 0.3, "late": 1.0},
                "metrics": {"late": ["mae"]},
            },
            {"x": {"left": x, "right": y[:, :2]}, "y": two},
        ),
        "blocks": (blocks, lambda: {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]}, data),
        "state": (normed, lambda: {"optimizer": "adam", "loss": "mse"}, data),
        "accumulation": (
            classifier,
            lambda: {
                "optimizer": keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.1),
                "loss": crossentropy(**of_weights),
            },
            {**weighted, "epochs": 2},
        ),
    }


@pytest.mark.short("accumulation-1f1b-2-False", "masks-gpipe-2-False")
@pytest.mark.parametrize(
    "name, schedule, replicas, eager",
    [
        ("masks", "gpipe", 2, False),
        ("weights", "1f1b", 1, True),
        ("class weights", "gpipe", 2, True),
        ("branches", "1f1b", 2, True),
        ("branches", "gpipe", 1, False),
        ("blocks", "gpipe", 2, True),
        ("blocks", "1f1b", 1, True),
        ("state", "gpipe", 2, True),
        ("state", "1f1b", 1, False),
        ("accumulation", "1f1b", 2, False),
    ],
)
def test_fit_evaluate_predict_are_those_of_one_device(name, schedule, replicas, eager):
    keras.config.set_floatx("float64")
    case = _cases()[name]
    plain = train(*case, on=None, evaluate=True, eager=True)
    on = pipeline(2, 4 // replicas, replicas, schedule=schedule)
    shown = train(*case, on=on, evaluate=True, eager=eager)
    helpers.assert_close(shown, plain, helpers.FLOAT64)


def test_losses_of_the_whole_batch_are_exact_under_gpipe_and_rejected_under_1f1b():
    keras.config.set_floatx("float64")
    x, y = golden_data(11)
    fit = {"x": x, "y": np.abs(y) % 1.0, "batch_size": 5}
    dice = (classifier, lambda: {"optimizer": "sgd", "loss": keras.losses.Dice()}, fit)
    own = (own_loss_model, lambda: {"optimizer": "sgd", "loss": "mse"}, fit)
    for case, eager in ((dice, False), (own, True)):
        plain = train(*case, on=None, eager=True)
        helpers.assert_close(train(*case, on=pipeline(2, 4), eager=eager), plain, helpers.FLOAT64)
    with pytest.raises(ValueError, match="`schedule='1f1b'` needs a loss that treats every sample indep"):
        train(*dice, on=pipeline(2, 4, schedule="1f1b"))


def test_statistics_of_all_samples_are_rejected_where_there_are_several_micro_batches():
    def build(micro_batches: int) -> keras.Model:
        with pipeline(1, micro_batches).scope():
            model = unisono.Sequential([keras.Input((2,)), layers.BatchNormalization(synchronized=True)])
            model.compile("sgd", "mse")
        return model

    model, data = build(2), (np.ones((4, 2)), np.ones((4, 2)))
    message = "micro_batches=2 and replicas=1 normalizes with the statistics of a mi"
    with pytest.raises(ValueError, match=message):
        model.fit(*data, verbose=0)
    model.evaluate(*data, verbose=0)  # evaluates with the trained weights
    build(1).fit(*data, verbose=0)


class Adds(layers.Layer):
    """Adds a loss without stating whether it is a mean or a sum over the samples."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.add_loss(0.1 * tf.reduce_mean(tf.square(x)))
        return x


def test_loss_that_user_code_adds_is_rejected_but_for_a_single_micro_batch():
    for on, wrong in ((pipeline(2, 2), True), (pipeline(2, 1), False)):
        with on.scope():
            stack = [layers.Dense(8), Adds(name="adds"), layers.Dense(CLASSES)]
            model = unisono.Sequential([keras.Input((FEATURES,)), *stack])
            model.compile("sgd", "mse")
        x, y = golden_data(8)
        raised = pytest.raises(ValueError, match=r"'adds' adds a loss.*several micro-batches.*compute_loss")
        with raised if wrong else contextlib.nullcontext():
            model.fit(x, y, batch_size=4, verbose=0)


def normalized_model() -> keras.Model:
    first = layers.BatchNormalization(momentum=0.7), layers.Dense(8, activation="relu")
    return unisono.Sequential([keras.Input((FEATURES,)), *first, layers.Dropout(0.5), layers.Dense(CLASSES)])


def _normalized_program() -> tuple[Any, Any, dict[str, Any]]:
    x, y = golden_data(13)
    fit = {"x": x, "y": y, "batch_size": 13, "epochs": 2}
    return normalized_model, lambda: {"optimizer": "sgd", "loss": "mse"}, fit


def test_batch_statistics_are_those_of_the_whole_batch_and_dropout_depends_on_the_micro_batches_alone():
    keras.config.set_floatx("float64")
    plain = train(*_normalized_program(), on=None, eager=True)[0]
    first = train(*_normalized_program(), on=pipeline(1, 4))
    helpers.assert_close(first[0][2:4], plain[2:4], helpers.FLOAT64, "moving mean and variance")
    # Neither on stages, nor on the schedule, rematerialization or replicas.
    in_turn = pipeline(3, 4, schedule="1f1b", rematerialize=True)
    replicated = pipeline(2, 2, 2, rematerialize=True)
    for each, eager in ((in_turn, False), (replicated, True)):
        helpers.assert_close(train(*_normalized_program(), on=each, eager=eager), first, helpers.FLOAT64)


def test_dropout_draws_another_mask_for_each_micro_batch():
    with pipeline(2, 4).scope():
        model = unisono.Sequential([keras.Input((50,)), layers.Dropout(0.5), layers.Activation("linear")])
        model.compile("sgd", lambda y, p: keras.ops.mean(p, axis=-1))
    plan = model._runner.pipeline.plan(model)
    run = PipelinedStep(plan.chain, plan.stages, [tf.ones((1, 50))] * 4, micro_steps(4, 4))
    masks = run.forward(plan.forward_jobs).outputs.numpy()
    assert len({tuple(row) for row in masks}) == 4
    keras.backend.clear_session(free_memory=False)


@pytest.mark.long
def test_overflow_in_one_micro_batch_skips_the_step_on_all_stages():
    unisono.mixed_precision.set_global_policy("mixed_float16")
    with pipeline(2, 2, replicas=2, schedule="1f1b").scope():
        model = unisono.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(1, dtype="float32")])
        model.compile("adam", "mse")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    model.train_on_batch(x, y)
    before, count = model.get_weights(), int(model.optimizer.iterations)
    x[5] = 60000.0
    model.train_on_batch(x * 10.0, y)
    helpers.assert_close(model.get_weights(), before, 0.0)
    x[5] = 1.0
    model.train_on_batch(x, y)
    assert any(np.any(a != b) for a, b in zip(model.get_weights(), before))
    assert int(model.optimizer.iterations) >= count + 1


@pytest.mark.long
def test_saved_model_opens_without_a_pipeline_and_with_other_stages(tmp_path):
    keras.config.set_floatx("float64")
    build, compiled, fit = _golden_program(batch_size=25, epochs=1)
    with pipeline(3, 4).scope():
        model = build()
        model.compile(**compiled())
    model.fit(verbose=0, **fit)
    model.save(tmp_path / "model.keras")
    answers = model.predict(fit["x"], verbose=0)
    opened = keras.saving.load_model(tmp_path / "model.keras")
    assert type(opened) is not type(model)
    helpers.assert_close(opened.predict(fit["x"], verbose=0), answers, helpers.FLOAT64)
    with pipeline(2, 2, schedule="1f1b").scope():
        other = unisono.load_model(tmp_path / "model.keras")
    for each in (model, other):
        keras.utils.set_random_seed(9)
        each.fit(verbose=0, **fit)
    helpers.assert_close(other.get_weights(), model.get_weights(), helpers.FLOAT64)
    devices = {slot.value.device[-5:] for slot in other.optimizer.variables[2:]}
    assert devices == {"CPU:0", "CPU:1"}, "the optimizer state is on the device of its weights"


@pytest.mark.long
def test_resumed_run_ends_with_the_bits_of_one_never_stopped(tmp_path):
    """Eagerly; `tests/workers/test_kill_and_resume.py` kills and resumes a pipeline in a graph."""
    keras.config.set_floatx("float64")
    x, y = golden_data(13)

    def run(on: Pipeline, callbacks: list[Any]) -> Any:
        keras.backend.clear_session(free_memory=False)  # as in a new process: the same names
        keras.utils.set_random_seed(3)
        with on.scope():
            model = normalized_model()
            model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
        history = model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks).history
        return [model.get_weights(), [v.numpy() for v in model.optimizer.variables], history]

    backup = functools.partial(unisono.callbacks.BackupAndRestore, save_freq=1)
    whole = run(pipeline(2, 2, schedule="1f1b"), [])
    with pytest.raises(helpers.Stop):
        run(pipeline(2, 2, schedule="1f1b"), [backup(tmp_path / "2"), helpers.StopAt(5)])
    shutil.copytree(tmp_path / "2", tmp_path / "3")
    for stages, tolerance in ((2, 0.0), (3, helpers.FLOAT64)):
        resumed = run(pipeline(stages, 2, schedule="1f1b"), [backup(tmp_path / str(stages))])
        helpers.assert_close(resumed, whole, tolerance, f"{stages} stages")
