"""Meshes of three axes: two of them never divide one axis of an activation, whatever the layouts ask for."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from meshes import check_equal, float64, strategy_for  # noqa: F401  (a fixture)

import unisono

L = keras.layers
R = np.random.default_rng(0)
X, Y = R.normal(size=(9, 4, 4)), R.normal(size=(9, 4))
NAMES = ("batch", "expert", "model")


def trained(middle):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4, 4))
    h = middle(L.Dense(8, "tanh", name="up")(inputs))
    model = unisono.Model(inputs, L.Dense(4, name="down")(h))
    model.compile(unisono.optimizers.SGD(0.1, momentum=0.9), "mse", jit_compile=False)
    history = model.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history
    return [*history.values(), *model.get_weights(), *[v.numpy() for v in model.optimizer.variables]]


def attend(x):
    return L.Flatten()(L.GroupQueryAttention(4, 4, 2, name="attention")(x, x))


MIDDLES = {  # what stands between the layers, and the layouts
    "one axis of an input": (lambda x: x[:, 0], {"up/kernel": (None, "expert"), "down/kernel": ("model", None)}),
    "axes that a reshape joins": (
        L.Flatten(), {"up/kernel": (None, "expert"), "up/bias": ("model",), "down/kernel": ("model", None)},
    ),
    "both axes of each weight": (
        L.Flatten(), {"up/kernel": ("expert", "model"), "down/kernel": ("expert", "model"), ".*bias": ("expert",)},
    ),
    "heads and their numbers": (
        attend,
        {
            ".*query/kernel": (None, "model", "expert"), ".*query/bias": ("expert", "model"),
            ".*key/kernel": ("model", "expert", None), ".*value/kernel": ("expert", "model", None),
            ".*attention_output/kernel": (None, "expert", "model"), "down/kernel": ("expert", "model"),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIDDLES)
@pytest.mark.short("axes that a reshape joins")
def test_two_axes_of_a_model_that_meet_in_one_axis_of_an_activation_train_as_one_device(name):
    middle, layouts = MIDDLES[name]
    expected = trained(middle)
    with strategy_for((1, 2, 2), layouts, NAMES).scope():
        found = trained(middle)
    check_equal(found, expected)
