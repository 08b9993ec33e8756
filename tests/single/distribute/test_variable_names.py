"""What user code reads of a variable is that of a plain one, wherever its value is divided or moved."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from meshes import strategy_for

import unisono
from unisono.distribute import Pipeline, sharded

X = np.random.default_rng(1).normal(size=(8, 4)).astype("float32")
LAYOUT = {"(hidden|mid)/kernel": (None, "model"), "mid/bias": ("model",), "head/kernel": ("model", None)}
STRATEGIES = {
    "optimizer state": lambda: sharded(helpers.mirrored(2)),
    "weights": lambda: sharded(helpers.mirrored(2), "weights"),
    "mesh": lambda: strategy_for((2, 2), LAYOUT),
    "weights on a mesh": lambda: sharded(strategy_for((2, 2), LAYOUT), "weights"),
    "pipeline": lambda: Pipeline(["CPU:0", "CPU:1"], micro_batches=2),
    "state of a pipeline": lambda: sharded(
        Pipeline([f"CPU:{n}" for n in range(4)], micro_batches=2, replicas=2)
    ),
}


def attributes(variable):
    """What `exclude_from_weight_decay` matches, of the variable of TensorFlow, and its other attributes."""
    value = variable.value
    described = (
        value.get_shape().as_list(),
        value.dtype,
        value.trainable,
        value.aggregation,
        value.constraint,
    )
    return [variable.name, variable.path, value.name, *described]


def fitted(kind, strategy=None):
    """The model after training; `kind` is `keras.Model` where it moves into the scope after it was made."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    with helpers.scope(strategy if kind is unisono.Model else None):
        x = layers.Dense(8, "tanh", name="hidden")(inputs)
        x = layers.Dense(8, "tanh", name="mid")(x)
        model = kind(inputs, layers.Dense(2, name="head")(x))
    with helpers.scope(strategy):
        model = unisono.adopt(model)
        optimizer = unisono.optimizers.SGD(1e-2, weight_decay=0.3, momentum=0.5)
        optimizer.exclude_from_weight_decay(var_names=["mid", "head/"])
        model.compile(optimizer, "mse")
    model.fit(X, X[:, :2], batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model


@pytest.mark.short("state of a pipeline")
@pytest.mark.parametrize("name", STRATEGIES)
def test_weight_decay_excludes_divided_weights_by_the_names_of_plain_ones(name):
    for kind in (unisono.Model,) if "pipeline" in name else (unisono.Model, keras.Model):
        one, model = fitted(kind), fitted(kind, STRATEGIES[name]())
        helpers.assert_close(model.get_weights(), one.get_weights(), helpers.FLOAT32)
        found, expected = (
            [attributes(v) for v in (*m.variables, *m.optimizer.variables)] for m in (model, one)
        )
        assert found == expected


class Notes(keras.optimizers.SGD):
    """Notes what `update_step` reads of the variables."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.notes = set()

    def update_step(self, gradient, variable, learning_rate):
        known = {variable.ref(): variable.name}[variable.ref()]
        kinds = isinstance(variable, tf.Variable), tf.is_tensor(variable), hasattr(variable, "op")
        self.notes.add((known, tuple(variable.get_shape()), variable.dtype, variable.trainable, *kinds))
        super().update_step(gradient * tf.norm(variable), variable, learning_rate)


@pytest.mark.parametrize("name", ["none", "optimizer state", "weights"])
@pytest.mark.long
def test_update_rule_of_the_user_reads_of_divided_weights_what_it_reads_of_plain_ones(name):
    found = []
    for strategy in (None, STRATEGIES.get(name, lambda: helpers.mirrored(2))()):
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        with helpers.scope(strategy):
            model = unisono.Sequential([keras.Input((4,)), layers.Dense(2)])
            model.compile(Notes(1e-2), "mse")
        model.fit(X, X[:, :2], batch_size=3, shuffle=False, verbose=0)
        found.append((sorted(map(str, model.optimizer.notes)), model.get_weights()))
    assert found[1][0] == found[0][0]
    helpers.assert_close(found[1][1], found[0][1], helpers.FLOAT32)


@pytest.mark.parametrize("name", ["weights", "weights on a mesh"])
def test_variable_inside_a_divided_weight_is_used_like_a_plain_one(name):
    rows = tf.IndexedSlices(tf.ones((2, 8)), [3, 0])
    found = []
    for strategy in (None, STRATEGIES[name]()):
        keras.utils.clear_session()
        with helpers.scope(strategy):
            value = layers.Dense(8, name="hidden", kernel_initializer="ones")
            value.build((None, 4))
            value = value.kernel.value
        assert value.ref().deref() is value and value.is_initialized() and value.device
        with pytest.raises(ValueError, match="ambiguous"):
            bool(value)
        value.scatter_nd_sub([[1, 2]], [5.0])
        value.scatter_max(rows)
        value.assign_add(tf.ones((4, 8)), read_value=False)
        value.scatter_add(rows)
        reads = value == 2.0, value[1], value.gather_nd([[1, 2]]), value.sparse_read([3]), 1 + value
        found.append([value.numpy(), *map(np.asarray, reads)])
    helpers.assert_equal(found[1], found[0])


class NotesOfWeights(keras.regularizers.Regularizer, keras.constraints.Constraint):
    """Notes what a regularizer or a constraint reads of a weight, and computes with the weight."""

    def __init__(self, notes, result):
        self.notes, self.result = notes, result

    def __call__(self, weight):
        described = weight.name, weight.path, weight.shape, weight.dtype, weight.ndim, weight.trainable
        value = weight.value
        inside = value.name, tuple(value.shape), value.dtype, value.trainable, tf.is_tensor(value)
        self.notes.add((*described, *inside))
        scale = 0.1 if "mid" in weight.path else 0.3
        return self.result(scale * weight[0] * value[:1] * tf.norm(weight) + weight)


@pytest.mark.short("none", "pipeline")
@pytest.mark.parametrize("name", ["none", "optimizer state", "weights", "mesh", "pipeline"])
def test_regularizers_and_constraints_read_of_weights_what_they_read_in_keras(name):
    found = []
    for strategy in (None, STRATEGIES.get(name, lambda: None)()):
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        notes = set()
        regularizer = NotesOfWeights(notes, keras.ops.sum)
        constraint = NotesOfWeights(notes, lambda value: 0.9 * value)
        if name == "mesh":  # rejects own constraints
            constraint = keras.constraints.MaxNorm(0.5)
        with helpers.scope(strategy):
            inputs = keras.Input((4,))
            make = dict(kernel_regularizer=regularizer, kernel_constraint=constraint)
            x = layers.Dense(8, "tanh", name="mid", **make)(inputs)
            model = keras.Model if not found else unisono.Model
            model = model(inputs, layers.Dense(2, name="head", **make)(x))
            model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=name != "mesh")
        losses = model.fit(X, X[:, :2], batch_size=3, shuffle=False, verbose=0).history["loss"]
        found.append((sorted(map(str, notes)), losses, model.get_weights()))
    assert found[1][0] == found[0][0]
    helpers.assert_close(found[1][1:], found[0][1:], helpers.FLOAT32)
