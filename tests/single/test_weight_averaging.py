"""`StochasticWeightAveraging`: averaged weights, with matching batch statistics."""

import helpers
import keras
import numpy as np
import pytest

import unisono
from unisono import callbacks

ROWS = 11
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
Y = X[:, :1] * 2


class Watch(keras.callbacks.Callback):
    """Stores the weights after every step; may raise."""

    def __init__(self, nth=None):
        super().__init__()
        self.steps, self.epochs, self._nth = [], [], nth

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append([v.numpy() for v in self.model.trainable_variables])
        if len(self.steps) == self._nth:
            raise helpers.Stop

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.steps[-1])


def trained(
    *extra, strategy=None, epochs=4, synchronized=True, dropout=0.3, x=(X, Y), optimizer=None, **options
):
    keras.backend.clear_session()
    keras.utils.set_random_seed(4)
    with helpers.scope(strategy):
        normal = keras.layers.BatchNormalization(synchronized=synchronized)
        layers = [keras.layers.Dense(2, "tanh"), normal, keras.layers.Dropout(dropout), keras.layers.Dense(1)]
        model = unisono.Sequential([keras.Input((3,)), *layers])
        model.compile(optimizer or unisono.optimizers.SGD(0.1), "mse", run_eagerly=strategy is None)
    options = {"batch_size": 4, **options} if len(x) == 2 else options
    model.fit(*x, epochs=epochs, verbose=0, callbacks=[*extra], **options)
    return model


def means(of):
    return [np.mean(np.asarray(each, np.float64), 0).astype("float32") for each in zip(*of)]


@pytest.mark.parametrize(("every", "chosen"), [("epoch", [5, 8, 11]), (2, [4, 6, 8, 10])])
def test_weights_are_the_mean_of_those_that_count(every, chosen):
    watch = Watch()
    model = trained(callbacks.StochasticWeightAveraging(1, every), watch)
    helpers.assert_equal(model.trainable_variables, means([watch.steps[i] for i in chosen]))


def test_statistics_are_the_mean_over_the_batches_of_one_more_epoch():
    model = trained(callbacks.StochasticWeightAveraging(1), shuffle=False)
    dense, normal = model.layers[:2]
    outputs = [dense(X[rows : rows + 4]).numpy() for rows in (0, 4, 8)]
    for variable, statistic in ((normal.moving_mean, np.mean), (normal.moving_variance, np.var)):
        expected = np.mean([statistic(each, 0) for each in outputs], 0)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert normal.momentum == 0.99


def test_replicas_agree_with_one():
    for every in ("epoch", 2):
        one, three = (
            trained(callbacks.StochasticWeightAveraging(1, every), strategy=strategy, dropout=0.0)
            for strategy in (None, helpers.mirrored(3))
        )
        helpers.assert_close(three.get_weights(), one.get_weights(), helpers.FLOAT32)
        assert helpers.copies_are_equal(three.variables, three.distribute_strategy)


@pytest.mark.parametrize("every", ["epoch", 2])
def test_resumed_training_ends_with_the_same_bits(every, tmp_path):
    expected = [w.tobytes() for w in trained(callbacks.StochasticWeightAveraging(1, every)).get_weights()]
    backup = lambda: callbacks.BackupAndRestore(tmp_path, save_freq=1)  # noqa: E731
    for nth in (8, 4):  # in the third epoch, and again at the very end
        with pytest.raises(helpers.Stop):
            trained(callbacks.StochasticWeightAveraging(1, every), backup(), Watch(nth))
    model = trained(callbacks.StochasticWeightAveraging(1, every), backup())
    assert [w.tobytes() for w in model.get_weights()] == expected


def test_what_cannot_be_averaged_is_rejected():
    generator = ((X, Y) for _ in range(9))
    message = "`x` is a generator, which cannot be read again: pass `steps_per_ep"
    with pytest.raises(ValueError, match=message):
        trained(callbacks.StochasticWeightAveraging(1), x=(generator,))
    with pytest.warns(UserWarning, match=r"before its `start_from_epoch` \(9\)"):
        trained(callbacks.StochasticWeightAveraging(9), epochs=1)


def test_any_callback_may_make_one_more_pass():
    class Passes(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.weights = self.model.get_weights()[0].tobytes()
            assert self.model.fit_state.why_no_pass is None
            self.steps = list(self.model.fit_state.forward_pass())

    passes = Passes()
    model = trained(passes, epochs=1)
    assert passes.steps == list(range(1, len(passes.steps) + 1)) and passes.steps
    assert model.get_weights()[0].tobytes() == passes.weights
