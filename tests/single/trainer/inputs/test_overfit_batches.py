"""`fit(overfit_batches=n)` repeats the first batches in every epoch, for every kind of input and in resumed runs."""

import functools

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

ROWS, BATCH = 22, 4
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
Y = X[:, :1] * 2


class Noisy(keras.utils.PyDataset):
    """Returns different samples at every access."""

    def __len__(self):
        return 6

    def __getitem__(self, number):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return X[rows] + np.random.normal(size=X[rows].shape), Y[rows]


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def generator():
    while True:
        yield Noisy()[0]


KINDS = {
    "arrays": lambda: ((X, Y), {"batch_size": BATCH}),
    "dataset": lambda: ((dataset().batch(BATCH),), {}),
    "shuffled": lambda: ((dataset().shuffle(22).repeat().batch(BATCH),), {"steps_per_epoch": 5}),
    "function": lambda: ((lambda context: dataset().shuffle(22).batch(2),), {}),
    "PyDataset": lambda: ((Noisy(),), {}),
    "generator": lambda: ((generator(),), {"steps_per_epoch": 3}),
    "iterable": lambda: (([*dataset().batch(BATCH)].__iter__(),), {"steps_per_epoch": 3}),
}


def trained(kind, *extra, strategy=None, rate=0.05, **arguments):
    keras.backend.clear_session()
    keras.utils.set_random_seed(4)
    with helpers.scope(strategy):
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)])
        model.compile(unisono.optimizers.SGD(rate), "mse", run_eagerly=strategy is None)
    data, options = KINDS[kind]()
    options = {"epochs": 3, "overfit_batches": 2, **options, **arguments}
    model.seen = []
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: model.seen.append(batch))
    history = model.fit(*data, verbose=0, callbacks=[look, *extra], **options)
    return [weight.tobytes() for weight in model.get_weights()], history.history, model.seen


@pytest.mark.short("function", "generator")
@pytest.mark.parametrize("kind", KINDS)
def test_epochs_are_of_the_same_first_batches_also_when_resumed(kind, tmp_path):
    expected = trained(kind)
    assert expected[2] == [0, 1] * 3
    assert len(set(trained(kind, rate=1e-30)[1]["loss"])) == 1  # constant weights: equal batches
    if kind in ("arrays", "dataset"):
        data = X[: 2 * BATCH], Y[: 2 * BATCH]
        KINDS["cut"] = lambda: (data, {"batch_size": BATCH, "shuffle": False, "overfit_batches": None})
        assert trained("cut")[:2] == expected[:2]
    again = helpers.resumed(functools.partial(trained, kind), tmp_path, 4)
    assert again[:2] == expected[:2] and again[2] == [1, 0, 1]


def test_replicas_agree_and_an_epoch_may_have_fewer_batches():
    for kind in ("arrays", "dataset"):
        one, three = (trained(kind, strategy=s) for s in (None, helpers.mirrored(3)))
        helpers.assert_close(three[1]["loss"], one[1]["loss"], helpers.FLOAT32, kind)
    assert trained("arrays", overfit_batches=99)[2] == [0, 1, 2, 3, 4, 5] * 3
    assert trained("shuffled", overfit_batches=99)[2] == [0, 1, 2, 3, 4] * 3


def test_what_cannot_be_cut_is_rejected():
    strategy = helpers.mirrored(2)
    given = strategy.experimental_distribute_dataset(dataset().batch(BATCH))
    KINDS["distributed"] = lambda: ((given,), {})
    with pytest.raises(ValueError, match=r"`overfit_batches` \(2\) cannot .* pass the tf\.data\.Dataset"):
        trained("distributed", strategy=strategy)
