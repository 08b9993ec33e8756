"""Strategies of meshes of CPU devices, for tests."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from helpers import FLOAT64

from unisono.distribute import strategy_of


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")


def distribution_for(shape, layouts, names=("batch", "model")):
    """A `ModelParallel` over the first CPU devices."""
    devices = [f"cpu:{number}" for number in range(int(np.prod(shape)))]
    found = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(shape, names, devices))
    for pattern, axes in layouts.items():
        found[pattern] = axes
    return keras.distribution.ModelParallel(layout_map=found, batch_dim_name="batch")


def strategy_for(shape, layouts, names=("batch", "model")):
    """Its strategy."""
    return strategy_of(distribution_for(shape, layouts, names))


def check_equal(found, expected, tolerance=FLOAT64):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
