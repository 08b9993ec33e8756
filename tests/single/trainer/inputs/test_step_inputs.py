"""Custom steps get the same structure as from Keras for the same input, with the samples of their replica."""

import collections

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

# Keras' own warnings in these cases: about `shuffle`, about the end of a generator.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:Your input ran out of data")
]

ROWS, BATCH = 10, 4  # 4, 4 and 2 samples: one of three replicas has none of the last batch
X = np.arange(ROWS * 3, dtype="float32").reshape(ROWS, 3)
Y, W = X[:, :1] / 9, np.linspace(0.5, 1.5, ROWS).astype("float32")
Pair = collections.namedtuple("Pair", "first second")


def described(data):
    """The structure of the data that a step got, and the kind of each leaf."""
    if isinstance(data, dict):
        return {key: described(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data).__name__, *map(described, data)
    return None if data is None else (isinstance(data, tf.SparseTensor), data.dtype.name, len(data.shape))


def step_model(base, eager=True):
    class Steps(base):
        """Sums the first array, and records the data structures that the steps got."""

        def __init__(self):
            super().__init__()
            self.sum, self.seen = keras.metrics.Sum(name="sum"), {}

        @property
        def metrics(self):
            return [self.sum]

        def _look(self, name, data):
            self.seen.setdefault(name, described(data))
            first = next(leaf for leaf in tf.nest.flatten(data) if leaf is not None and leaf.shape.rank)
            first = tf.sparse.to_dense(first) if isinstance(first, tf.SparseTensor) else first
            sums = tf.reduce_sum(tf.cast(first, tf.float32), axis=list(range(1, first.shape.rank)))
            self.sum.update_state(sums)
            return sums

        def train_step(self, data):
            self._look("fit", data)
            return {"sum": self.sum.result()}

        def test_step(self, data):
            self._look("evaluate", data)
            return {"sum": self.sum.result()}

        def predict_step(self, data):
            return self._look("predict", data)

    model = Steps()
    model.compile("sgd", jit_compile=False, run_eagerly=eager)
    return model


def dataset(*elements):
    """A pipeline without autotuning: TensorFlow waits for its thread, up to 60 s, when it frees an iterator."""
    element = elements[0] if len(elements) == 1 else elements
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices(element).batch(BATCH).with_options(options)


def batches(make):
    return [make(slice(BATCH * number, BATCH * (number + 1))) for number in range(3)]


def generator(make):
    return (batch for batch in batches(make))


def mapped(function):
    return {"x": dataset(X, Y).map(function)}


def arrays(x, y=None, sample_weight=None):
    return {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": BATCH}


CASES = {
    "array": lambda: arrays(X),
    "array and targets": lambda: arrays(X, Y),
    "array, targets and weights": lambda: arrays(X, Y, W),
    "array and weights": lambda: arrays(X, None, W),
    "list of one": lambda: arrays([X]),
    "list": lambda: arrays([X, Y]),
    "tuple": lambda: arrays((X, Y)),
    "dict": lambda: arrays({"b": X, "a": Y}),
    "nest": lambda: arrays({"b": [X, {"c": Y}]}, [Y, Y]),
    "dataset": lambda: {"x": dataset(X)},
    "dataset of one": lambda: {"x": dataset((X,))},
    "dataset of two": lambda: {"x": dataset(X, Y)},
    "dataset of four": lambda: {"x": dataset(X, Y, W, Y)},
    "dataset of a nest": lambda: {"x": dataset(X, (Y, W), {"a": Y}, Y, X)},
    "dataset of dicts": lambda: {"x": dataset({"x": X, "y": Y})},
    "dataset of named tuples": lambda: {"x": dataset(Pair(X, Y))},
    "dataset with named tuples": lambda: {"x": dataset(Pair(X, Y), Y)},
    "dataset with a scalar": lambda: mapped(lambda x, y: (x, {"y": y, "k": tf.constant(3)})),
    "dataset with nothing": lambda: mapped(lambda x, y: (x, None, y)),
    "dataset with optionals": lambda: mapped(lambda x, y: (x, tf.experimental.Optional.from_value(y))),
    "dataset with sparse": lambda: mapped(lambda x, y: (tf.sparse.from_dense(x), y)),
    "PyDataset": lambda: {"x": helpers.Batches(batches(lambda rows: X[rows]))},
    "PyDataset of one": lambda: {"x": helpers.Batches(batches(lambda rows: (X[rows],)))},
    "PyDataset of lists": lambda: {"x": helpers.Batches(batches(lambda rows: [X[rows], Y[rows]]))},
    "PyDataset of dicts": lambda: {"x": helpers.Batches(batches(lambda rows: {"x": X[rows], "y": Y[rows]}))},
    "generator of one": lambda: {"x": generator(lambda rows: (X[rows],))},
    "generator of four": lambda: {"x": generator(lambda rows: (X[rows], Y[rows], Y[rows], Y[rows]))},
    "generator with nothing": lambda: {"x": generator(lambda rows: (X[rows], None))},
    "generator of named tuples": lambda: {"x": generator(lambda rows: Pair(X[rows], Y[rows]))},
}


GRAPH = (
    "array",
    "dataset of a nest",
    "dataset with a scalar",
    "dataset with optionals",
    "generator with nothing",
)


def used(model, name):
    """The data structures that the steps of a model got, and their sums."""
    fit, evaluate, predict = (CASES[name]() for _ in range(3))
    if "batch_size" in predict:
        predict = {"x": predict["x"], "batch_size": BATCH}
    last = model.fit(**fit, shuffle=False, verbose=0).history["sum"][-1]
    found = [last, model.predict(**predict, verbose=0)]
    if name in GRAPH:
        found.append(model.evaluate(**evaluate, verbose=0, return_dict=True)["sum"])
    return found, model.seen


@pytest.mark.parametrize("name", CASES)
@pytest.mark.short(
    "dataset of one",
    "dataset of two",
    "dataset with a scalar",
    "dataset with optionals",
    "PyDataset",
    "PyDataset of lists",
    "generator with nothing",
    "generator of named tuples",
)
def test_custom_steps_get_the_structure_that_keras_gives(name):
    right, seen = used(step_model(keras.Model), name)
    with helpers.mirrored(2 if name in GRAPH else 3).scope():
        several = step_model(unisono.Model, eager=name not in GRAPH)
    for model in (several, step_model(unisono.Model)):
        found, got = used(model, name)
        assert got == seen
        helpers.assert_close(found, right, helpers.FLOAT32)


@pytest.mark.long
def test_validation_data_reaches_the_custom_step_as_in_keras():
    for validation, case in (((X,), "array"), ([X, Y], "array and targets"), (dataset(X), "dataset")):
        seen = []
        for base, scope in ((keras.Model, None), (unisono.Model, helpers.mirrored(3))):
            with helpers.scope(scope):
                model = step_model(base)
            model.fit(**CASES[case](), validation_data=validation, verbose=0)
            seen.append(model.seen)
        assert seen[0] == seen[1]
    model = step_model(unisono.Model)
    model.fit(X, validation_split=0.5, verbose=0)
    assert model.seen["fit"] == model.seen["evaluate"] == described(tf.constant(X))


@pytest.mark.long
def test_steps_on_one_batch_get_the_structure_that_keras_gives():
    seen = []
    for base, scope in ((keras.Model, None), (unisono.Model, None), (unisono.Model, helpers.mirrored(2))):
        with helpers.scope(scope):
            model = step_model(base, eager=False)
        for arguments in ((X,), (X, Y), ({"a": X}, Y, W)):
            model.train_on_batch(*arguments)
            model.test_on_batch(*arguments)
            model.predict_on_batch(arguments[0])
            seen.append(dict(model.seen))
            model.seen.clear()
    assert seen[:3] == seen[3:6] == seen[6:]


@pytest.mark.parametrize(
    "make", [lambda: dataset(X, Y, W, Y), lambda: dataset(Pair(X, Y)), lambda: dataset(X)]
)
def test_custom_steps_get_the_elements_of_distributed_datasets(make):
    strategy, element = helpers.mirrored(3), make().element_spec
    whole = tf.nest.map_structure(lambda spec: (False, spec.dtype.name, spec.shape.rank), element)
    for x in (
        strategy.experimental_distribute_dataset(make()),
        lambda context: make().shard(context.num_input_pipelines, context.input_pipeline_id),
    ):
        with strategy.scope():
            model = step_model(unisono.Model)
        history = model.fit(x, verbose=0).history["sum"]
        helpers.assert_close(history, [X.sum()], helpers.FLOAT32)
        got = model.seen["fit"]
        assert (got[0] if isinstance(got[0], str) else "tensor") == {tuple: "tuple", Pair: "Pair"}.get(
            type(element), "tensor"
        )
        assert tf.nest.flatten(described(element))[-3:] == tf.nest.flatten(got)[-3:], whole


def call_two(self, x):
    """A model with one input or two, in a tuple or in a dict."""
    total = self.out(tf.concat(tf.nest.flatten(x), -1))
    self.add_loss(tf.reduce_mean(total**2))
    return total


STANDARD = {
    "x": dataset(X),
    "(x,)": dataset((X,)),
    "a dict": dataset({"a": X, "b": Y}),
    "(x, y)": dataset(X, Y),
    "((x, x), y)": dataset((X, Y), Y),
    "a named tuple": dataset(Pair(X, Y)),
    "(x, y, w)": dataset(X, Y, W),
    "(x, None)": dataset(X, Y).map(lambda x, y: (x, None)),
}


@pytest.mark.parametrize("name", STANDARD)
@pytest.mark.long
def test_keras_steps_take_what_keras_takes_apart(name):
    results = []
    for base, scope in ((keras.Model, None), (unisono.Model, helpers.mirrored(3))):
        with helpers.scope(scope):
            model = type("Two", (base,), {"call": call_two})()
            model.out = keras.layers.Dense(1, kernel_initializer="ones")
            targets = "y" in name or name == "a named tuple"
            model.compile(
                keras.optimizers.SGD(1e-3), "mse" if targets else None, jit_compile=False, run_eagerly=True
            )
        data = STANDARD[name]
        history = model.fit(data, epochs=2, verbose=0).history["loss"]
        results.append([history, model.evaluate(data, verbose=0), model.predict(data, verbose=0)])
    helpers.assert_close(results[1], results[0], helpers.FLOAT32)


def test_structure_that_keras_step_cannot_take_apart_is_rejected_before_the_first_step():
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before, four = model.get_weights(), dataset(X, Y, W, W)
    for refused in (
        lambda: model.fit(four, verbose=0),
        lambda: model.fit(generator(lambda rows: (X[rows],) * 4), verbose=0),
        lambda: model.fit(X, Y, validation_data=four, verbose=0),
        lambda: model.evaluate(four, verbose=0),
        lambda: model.predict(four, verbose=0),
    ):
        with pytest.raises(ValueError, match=r"tuples of 4, but `\w+_step` takes x, \(x,\), \(x, y\)"):
            refused()
    helpers.assert_close(model.get_weights(), before, 0.0)


def test_optimizer_of_a_model_that_its_custom_step_builds_makes_each_slot_once():
    class OfInputs(unisono.Sequential):
        def train_step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(x, training=True) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return {"loss": loss}

    model = OfInputs([keras.layers.Dense(2)])
    model.compile(unisono.optimizers.SGD(0.1, use_ema=True, gradient_accumulation_steps=2), run_eagerly=True)
    model.fit(X, batch_size=BATCH, verbose=0)
    slots = [variable.path for variable in model.optimizer.variables]
    assert len([path for path in slots if path.endswith("_average")]) == 2, slots
    assert len(set(slots)) == len(slots), slots
