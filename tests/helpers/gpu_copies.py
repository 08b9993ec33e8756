"""Checks shared by the tests on GPUs."""

import numpy as np


def equal_copies(model):
    """Whether all copies of every variable are bitwise identical."""
    for variable in model.variables:
        copies = getattr(variable.value, "values", (variable.value,))
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy.numpy(), copies[0].numpy())
