"""What user code reads of a variable is that of a plain one, wherever its value is divided or moved."""

import helpers
import keras
import numpy as np
import pytest
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
    described = (value.shape.as_list(), value.dtype, value.trainable, value.aggregation)
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


@pytest.mark.short("weights", "weights on a mesh", "pipeline", "state of a pipeline")
@pytest.mark.parametrize("name", STRATEGIES)
def test_weight_decay_excludes_divided_weights_by_the_names_of_plain_ones(name):
    for kind in (unisono.Model,) if "pipeline" in name else (unisono.Model, keras.Model):
        one, model = fitted(kind), fitted(kind, STRATEGIES[name]())
        helpers.assert_close(model.get_weights(), one.get_weights(), helpers.FLOAT32)
        found, expected = (
            [attributes(v) for v in (*m.variables, *m.optimizer.variables)] for m in (model, one)
        )
        assert found == expected
