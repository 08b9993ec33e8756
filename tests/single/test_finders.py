"""Finders try training steps without side effects."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from without_side_effects import Shuffling, X, Y, dataset, drawn, make_model

import unisono
from unisono.trainer import finders
from unisono.trainer.finders import _largest_that_fits as largest_that_fits

KINDS = {
    "arrays": lambda: ((X, Y), {"batch_size": 5}),
    "dataset": lambda: ((dataset(),), {}),
    "endless": lambda: ((dataset().repeat(),), {"steps_per_epoch": 2}),
    "PyDataset": lambda: ((Shuffling(),), {}),
}


def trained(kind, find, strategy=None):
    model = make_model(strategy)
    given, options = KINDS[kind]()
    found = find(model, *given, **{name: v for name, v in options.items() if name == "batch_size"})
    state = model.optimizer.built, model.stop_training, model.fit_state, model.train_function, drawn()
    history = model.fit(*given, epochs=2, verbose=0, **options).history
    values = [np.asarray(tf.convert_to_tensor(v.value)).tobytes() for v in model.variables]
    return (values, int(model.layers[2].count.numpy()), history, state[1:], drawn()), found


def nothing(model, *given, **options):
    return None


def rates(model, *given, **options):
    return unisono.find_learning_rate(model, *given, lowest=1e-4, highest=50.0, steps=24, **options)


@pytest.mark.short("dataset", "arrays")
@pytest.mark.parametrize("kind", KINDS)
def test_training_after_a_search_for_a_learning_rate_has_the_same_bits(kind):
    alone, (after, found) = trained(kind, nothing)[0], trained(kind, rates)
    assert after == alone
    assert 11 < len(found.rates) == len(found.losses) <= 24


@pytest.mark.parametrize("fixed", [0, 40])
def test_largest_batch_is_found_without_running_out_of_memory(fixed):
    for per_sample in (1, 3, 7.3):
        for rows, multiple in ((5000, 1), (5000, 3), (3, 2), (100, 3)):
            tried = []
            bytes_of = lambda size: tried.append(size) or fixed + per_sample * size  # noqa: B023, E731
            found = largest_that_fits(bytes_of, 2000, rows, multiple)
            best = int((2000 - fixed) / per_sample)
            assert found == (rows if rows <= best else best // multiple * multiple)
            assert all(fixed + per_sample * size <= 2000 for size in tried)
    assert largest_that_fits(lambda size: 1950 + size, 2000, 999, 1) == 50  # nearly all of it is fixed
    jumps = {4: 10, 8: 20}  # memory use that is not proportional, and a sudden limit
    found = largest_that_fits(
        lambda size: jumps.get(size, size * 4.0 if size <= 37 else np.inf), 1000, 999, 1
    )
    assert found == 37
    with pytest.raises(ValueError, match=r"8 samples need 8 MiB, more than `memory` \(1 MiB\)"):
        largest_that_fits(lambda size: size * 2.0**20, 2.0**20, 100, 2)


@pytest.mark.short("None")
@pytest.mark.parametrize("kind", [None, "mirrored2"])
def test_training_after_a_search_for_a_batch_size_has_the_same_bits(kind, monkeypatch):
    """The memory use is simulated: proportional to the number of samples."""
    sizes = []

    class Peak:
        def __init__(self, devices):
            assert len(devices) == 1 + (kind is not None)

        def reset(self):
            pass

        def limit(self):
            return 556

        def most(self):
            return 50 * sizes[-1]

    def find(model, *given, **options):
        return unisono.find_batch_size(model, *given)

    real = finders._largest_that_fits
    noting = lambda bytes_of, *rest: real(lambda n: sizes.append(n) or bytes_of(n), *rest)  # noqa: E731
    monkeypatch.setattr(finders, "PeakMemory", Peak)
    monkeypatch.setattr(finders, "_largest_that_fits", noting)
    strategy = None if kind is None else helpers.mirrored(2)
    alone = trained("arrays", nothing, strategy)[0]
    after, found = trained("arrays", find, strategy)
    assert after == alone
    assert found == 10 and sizes == ([4, 8, 10] if kind is None else [8, 10])  # nine tenths are 500


def test_rates_and_losses_are_those_of_one_replica():
    results = []
    for strategy in (None, helpers.mirrored(3)):
        keras.utils.set_random_seed(1)
        with helpers.scope(strategy):
            model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(unisono.optimizers.SGD(0.01), "mse")
        before = [w.tobytes() for w in model.get_weights()]
        options = {"batch_size": 4, "lowest": 1e-3, "highest": 100, "steps": 40}
        results.append(unisono.find_learning_rate(model, X, Y, **options))
        assert [w.tobytes() for w in model.get_weights()] == before
    one, three = results
    assert one.rates == pytest.approx([1e-3 * 1e5 ** (i / 39) for i in range(len(one.rates))])
    assert len(one.rates) < 40 and one.losses[-1] > 4 * min(one.losses)  # it diverged
    assert three.suggestion == pytest.approx(one.suggestion) and 1e-3 < one.suggestion < 1
    helpers.assert_close(three.losses[:-1], one.losses[:-1], 1e-4)
    # one loss per step: the first is that of the first four samples in the order of the first epoch
    assert one.losses[0] != one.losses[1]


def test_what_cannot_be_searched_is_rejected():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    scheduled = make_model(optimizer=keras.optimizers.SGD(schedule))
    unbuilt = unisono.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    generator = iter([(X, Y)] * 9)
    for model, given, options, message in (
        (make_model(), (X, Y), {"steps": 5}, "`steps` must be a whole number of at least 20"),
        (make_model(), (X, Y), {"lowest": 0}, "`lowest` must be a number above 0"),
        (make_model(), (X, Y), {"highest": 1e-9}, "`highest` must be a number above 1e-07"),
        (
            make_model(),
            (generator,),
            {},
            "`find_learning_rate` needs an input that can be read without side effects",
        ),
        (scheduled, (X, Y), {}, "LearningRateSchedule"),
        (unbuilt, (X, Y), {}, r"with all of its variables: start it with a keras\.Input"),
        (keras.Sequential([keras.layers.Dense(1)]), (X, Y), {}, r"a Unisono model \(see `unisono\.adopt`\)"),
        (unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), (X, Y), {}, "compile"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            unisono.find_learning_rate(model, *given, **options)
    assert len(list(generator)) == 9
    with pytest.raises(ValueError, match=r"must be arrays: a tf\.data\.Dataset already has batches"):
        unisono.find_batch_size(make_model(), dataset())
    with pytest.raises(ValueError, match="`memory` must be None or a number above 0"):
        unisono.find_batch_size(make_model(), X, Y, memory=0)
    with pytest.raises(ValueError, match="4 samples need"):
        unisono.find_batch_size(make_model(), X, Y, memory=2**20)  # less than this process uses


def test_what_determinism_costs_is_said_once(monkeypatch, capsys):
    def fit(x, verbose=2, **options):
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **options)
        model.fit(x, verbose=verbose)
        return [line for line in capsys.readouterr().out.splitlines() if "determinism" in line]

    plain = tf.data.Dataset.from_tensor_slices((X, Y))
    draws = plain.map(lambda x, y: (x + tf.random.uniform([3]), y), num_parallel_calls=2).batch(4)
    assert fit(draws) == []
    monkeypatch.setattr("unisono.trainer.run.fit_begin.operations_are_deterministic", lambda: True)
    assert fit(draws, verbose=0) == []
    (line,) = fit(draws)
    assert "plain graph" in line and "ParallelMapDataset of the input draws random numbers" in line
    assert fit(draws) == []  # warned already
    (line,) = fit(plain.batch(4), jit_compile=False)
    assert "plain graph" not in line and "make this fit slower: some kernels are slower" in line
