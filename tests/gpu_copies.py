"""Checks that the tests on GPUs share."""

import numpy as np


def equal_copies(model):
    """Every copy of every variable has the same bits."""
    for variable in model.variables:
        copies = getattr(variable.value, "values", (variable.value,))
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy.numpy(), copies[0].numpy())
