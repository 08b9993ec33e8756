"""`FitState.forward_pass`: the callback of the guide renews batch statistics in one more pass over the training data."""

import re

import helpers
import keras
import numpy as np
from children import ROOT

import unisono

ROWS = 11
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
Y = X[:, :1] * 2
GUIDE = ROOT / "docs" / "guides" / "resume.md"


def renewing():
    """The callback of the guide."""
    scope = {"keras": keras, "np": np}
    exec(re.search(r"^class RenewStatistics.*?(?=^\S)", GUIDE.read_text(), re.M | re.S)[0], scope)
    return scope["RenewStatistics"]()


def trained(*extra, strategy=None, x=(X, Y), epochs=2, **options):
    keras.backend.clear_session()
    keras.utils.set_random_seed(4)
    with helpers.scope(strategy):
        normal = keras.layers.BatchNormalization(synchronized=True)
        # A bias before the normalization would have gradients of rounding errors alone.
        layers = [keras.layers.Dense(2, use_bias=False), normal, keras.layers.Dense(1)]
        model = unisono.Sequential([keras.Input((3,)), *layers])
        optimizer = unisono.optimizers.SGD(0.1, use_ema=True)
        model.compile(optimizer, "mse", run_eagerly=strategy is None)
    options = {"batch_size": 4, **options} if len(x) == 2 else options
    model.fit(*x, epochs=epochs, verbose=0, callbacks=[*extra], **options)
    return model


def test_statistics_are_the_mean_over_the_batches_of_one_more_epoch():
    model = trained(renewing(), shuffle=False)
    dense, normal = model.layers[:2]
    outputs = [dense(X[rows : rows + 4]).numpy() for rows in (0, 4, 8)]
    for variable, statistic in ((normal.moving_mean, np.mean), (normal.moving_variance, np.var)):
        expected = np.mean([statistic(each, 0) for each in outputs], 0)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert normal.momentum == 0.99
    three = trained(renewing(), strategy=helpers.mirrored(3), shuffle=False)
    helpers.assert_close(three.get_weights(), model.get_weights(), helpers.FLOAT32)
    assert helpers.copies_are_equal(three.variables, three.distribute_strategy)


def test_pass_reads_each_batch_once_and_leaves_weights():
    class Passes(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.weights = self.model.get_weights()[0].tobytes()
            self.why = self.model.fit_state.why_no_pass
            self.steps = [] if self.why else list(self.model.fit_state.forward_pass())

    passes = Passes()
    model = trained(passes)
    assert passes.why is None and passes.steps == [1, 2, 3]
    assert model.get_weights()[0].tobytes() == passes.weights
    trained(passes, x=(((X, Y) for _ in range(9)),), epochs=1)
    assert passes.why.startswith("`x` is a generator, which cannot be read again: pass `steps_per_ep")
