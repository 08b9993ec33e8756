"""Large arrays are read part by part in `evaluate` and `predict`, which pass over them once."""

import keras
import numpy as np
import pytest
from helpers import FLOAT32, assert_close, mirrored, scope

import unisono
from unisono.trainer.run import evaluation

X = np.random.default_rng(1).normal(size=(13, 3)).astype("float32")


@pytest.mark.long
def test_one_pass_over_large_arrays_copies_none_and_has_the_same_results(monkeypatch):
    kinds = []

    def note(original, *args, **kwargs):
        source = original(*args, **kwargs)
        kinds.append(type(source).__name__)
        return source

    make = evaluation.make_source
    monkeypatch.setattr(evaluation, "make_source", lambda *args, **kwargs: note(make, *args, **kwargs))
    for strategy in (None, mirrored(2)):
        keras.utils.set_random_seed(1)
        with scope(strategy):
            model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse", metrics=["mae"], jit_compile=False)
        found = []
        for size in (10**6, 0):
            monkeypatch.setattr(evaluation, "_PASS_BYTES", size)
            logs = model.evaluate(X, X[:, :2], batch_size=5, sample_weight=X[:, 0] ** 2, verbose=0)
            found.append([logs, model.predict(X, batch_size=5, verbose=0)])
        assert_close(*found, FLOAT32)
    assert kinds == ["ArraySource", "ArraySource", "StreamedArrays", "StreamedArrays"] * 2
