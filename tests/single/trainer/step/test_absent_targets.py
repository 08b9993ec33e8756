"""Outputs without a target: a list of targets may contain `None`, as in Keras."""

import helpers
import keras
import numpy as np
import pytest

import unisono

X = np.random.default_rng(0).normal(size=(19, 3)).astype("float32")
Y = X[:, :1] * X[:, 1:2]


def trained(replicas, absent, jit_compile):
    def make():
        inputs = keras.Input((3,))
        h = keras.layers.Dense(4, "tanh")(inputs)
        outputs = [keras.layers.Dense(1)(h), keras.layers.Dense(2, trainable=False)(h)]
        return unisono.Model(inputs, outputs if absent else outputs[0])

    targets, loss = ([Y, None], ["mse", None]) if absent else (Y, "mse")
    fit = {"batch_size": 8}
    model, history = helpers.train(make, (X, targets), replicas, fit, loss=loss, jit_compile=jit_compile)
    evaluated = model.evaluate(X, targets, batch_size=8, verbose=0)
    on_batch = model.train_on_batch(X, targets)
    return [history["loss"], evaluated, on_batch, *(np.array(v) for v in model.layers[1].weights)]


def test_output_without_a_target_changes_nothing():
    expected = trained("none", absent=False, jit_compile=False)
    for replicas, jit_compile in (("none", True), ("mirrored2", False)):
        helpers.assert_close(trained(replicas, True, jit_compile), expected, helpers.FLOAT32, replicas)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("loss", [{"a": "mse", "b": None}, {"a": "mse", "b": "mse"}], ids=["metrics", "loss"])
@pytest.mark.parametrize("outputs", ["dict", "list"])
def test_an_output_that_needs_a_target_is_named(outputs, loss):
    inputs = keras.Input((3,))
    made = {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"}
    model = unisono.Model(inputs, made if outputs == "dict" else list(made.values()))
    model.compile("sgd", loss, metrics={"a": ["mae"], "b": ["mae"]})
    for targets in ({"a": Y}, {"a": Y, "b": None}, [Y, None]):
        with pytest.raises(ValueError, match="`y` has no target for the output 'b'"):
            model.fit(X, targets, verbose=0)


def classifier(units, loss, activation="softmax"):
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(units, activation)])
    model.compile("sgd", loss, jit_compile=False)
    return model


@pytest.mark.parametrize("classes", [{3: 2.0}, {-1: 2.0}, {0: 1.0, 1: 1.0, 2: 1.0, 5: 1.0}])
@pytest.mark.parametrize("method", ["fit", "train_on_batch"])
@pytest.mark.parametrize("one_hot", [False, True])
def test_class_weight_of_a_class_that_the_model_does_not_have_is_rejected(one_hot, method, classes):
    numbers = np.arange(len(X)) % 3
    targets = np.eye(3, dtype="float32")[numbers] if one_hot else numbers
    model = classifier(3, "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy")
    before = model.get_weights()
    with pytest.raises(
        ValueError, match=f"`class_weight` has the classes \\[{max(classes)}\\], but .* has 3"
    ):
        getattr(model, method)(X, targets, class_weight=classes)
    helpers.assert_equal(model.get_weights(), before)
    getattr(model, method)(X, targets, class_weight={0: 2.0, 2: 0.5})


class Own(unisono.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(y_pred * sample_weight[:, None])


def with_own_loss():
    model = Own([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


IGNORING = keras.losses.SparseCategoricalCrossentropy(ignore_class=9)
UNKNOWN = {
    "ignored class": (lambda: classifier(3, IGNORING), np.where(X[:, 0] > 0, 9, 1), {9: 1.0, 1: 2.0}),
    "binary": (lambda: classifier(1, "binary_crossentropy", "sigmoid"), X[:, :1] > 0, {0: 3.0, 7: 2.0}),
    "numbers": (lambda: classifier(1, "mse", "sigmoid"), X[:, :1] > 0, {0: 3.0, 7: 2.0}),
    "own loss": (with_own_loss, np.where(X[:, 0] > 0, 0, 5), {5: 2.0}),
}


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.short("own loss")
def test_class_weight_weighs_samples_where_the_number_of_classes_is_not_known(kind):
    make, targets, classes = UNKNOWN[kind]
    of_samples = np.array([classes.get(int(target), 1.0) for target in targets.ravel()])
    trained = []
    for weights in ({"class_weight": classes}, {"sample_weight": of_samples}, {}):
        keras.utils.set_random_seed(1)
        model = make()
        if weights or kind != "own loss":
            model.fit(X, targets, **weights, verbose=0)
        trained.append(model.get_weights())
    helpers.assert_equal(trained[0], trained[1])
    assert not all(map(np.array_equal, trained[0], trained[2])), "the weights change something"
