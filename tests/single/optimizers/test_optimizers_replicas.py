"""Each optimizer option on 1 to 4 replicas matches a single device; the copies agree bit for bit."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono import optimizers
from unisono.distribute import sharded
from unisono.optimizers.stages import aggregators

SHAPES, STEPS, ROWS = [(4, 3), (3,)], 6, 7
OPTIONS = {
    "clipnorm": {"clipnorm": 0.3},
    "clipvalue": {"clipvalue": 0.1},
    "global_clipnorm and decay": {"global_clipnorm": 0.3, "weight_decay": 0.1},
    "averages": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    "accumulation": {
        "gradient_accumulation_steps": 3,
        "clipnorm": 0.2,
        "use_ema": True,
        "ema_overwrite_frequency": 2,
    },
    "loss scale": {"loss_scale_factor": 8.0},
    "schedule": {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)},
    "transformers": {
        "gradient_transformers": [
            optimizers.centralize,
            optimizers.AdaptiveClip(0.5),
            optimizers.AddDecayedWeights(0.1),
            optimizers.GradientNoise(0.01),
            optimizers.ClipByGlobalNorm(0.5),
        ]
    },
    "aggregator": {"gradient_aggregator": optimizers.PackedAggregation()},
}


def row_gradients(step, dtype):
    """Each sample's gradient in a global batch: `(ROWS, *shape)` for each variable."""
    numbers = np.random.default_rng(step)
    return [numbers.normal(size=(ROWS, *shape)).astype(dtype) for shape in SHAPES]


def train(optimizer_of, replicas, dtype="float64", sparse=False, in_graph=True, level=None):
    """Trains two variables; replica r gets the samples r, r + R, ... of each batch."""
    strategy = helpers.mirrored(replicas)
    if level is not None:
        strategy = sharded(strategy, level)
    with strategy.scope():
        numbers = np.random.default_rng(1)
        variables = [keras.Variable(numbers.normal(size=shape), dtype=dtype) for shape in SHAPES]
        optimizer = optimizer_of()

    def replica_step(gradients):
        if sparse:  # every slice in two halves
            halves, rows = tf.concat([gradients[0] / 2] * 2, 0), tf.concat([tf.range(4)] * 2, 0)
            gradients = [tf.IndexedSlices(halves, rows, tf.constant(SHAPES[0])), gradients[1]]
        optimizer.apply_gradients(zip(gradients, variables))

    def step(gradients):
        strategy.run(replica_step, args=(gradients,))

    function = tf.function(step) if in_graph else step

    def spread(rows):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(rows[context.replica_id_in_sync_group :: replicas].sum(0) / ROWS)
        )

    for number in range(STEPS):
        function([spread(rows) for rows in row_gradients(number, dtype)])
    assert helpers.copies_are_equal([*variables, *optimizer.variables], strategy)
    return [v.numpy() for v in [*variables, *optimizer.variables]]


@pytest.fixture(scope="module")
def on_one_device():
    """Single-device results, computed once for each case."""
    known = {}

    def result(key, optimizer_of, **how):
        if key not in known:
            known[key] = train(optimizer_of, 1, in_graph=False, **how)
        return known[key]

    return result


def adam_with(name):
    return lambda: optimizers.Adam(**{"learning_rate": 0.05, **OPTIONS[name]})


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.short(but=["transformers-4"])
def test_option_on_replicas_equals_one_device(name, replicas, on_one_device):
    found = train(adam_with(name), replicas, in_graph=replicas == 2)
    helpers.assert_close(found, on_one_device(name, adam_with(name)), helpers.FLOAT64, name)


@pytest.mark.short("global_clipnorm and decay", "loss scale", "aggregator")
@pytest.mark.parametrize("number", range(len(OPTIONS)), ids=list(OPTIONS))
def test_option_with_sharded_state_equals_one_device(number, on_one_device):
    name, level = list(OPTIONS)[number], ("optimizer", "weights")[number % 3 // 2]
    actual = train(adam_with(name), 3 - number % 2, level=level, in_graph=name == "accumulation")
    helpers.assert_close(actual, on_one_device(name, adam_with(name)), helpers.FLOAT64, name)


def rule(name):
    """A rule, the dtype as in Keras, and the tolerance; Muon's iteration amplifies the order of summation."""
    dtype, tolerance = ("float32", 1e-4) if name == "Muon" else ("float64", helpers.FLOAT64)
    return getattr(optimizers, name), dtype, tolerance


@pytest.mark.short("Adam")
@pytest.mark.parametrize("number", range(len(helpers.OPTIMIZERS)), ids=helpers.OPTIMIZERS)
def test_optimizer_with_sharded_state_equals_one_device(number, on_one_device):
    name = helpers.OPTIMIZERS[number]
    make, dtype, tolerance = rule(name)
    level = "weights" if number % 3 else "optimizer"
    actual = train(make, 3, dtype=dtype, in_graph=False, level=level, sparse=number % 2 == 1)
    helpers.assert_close(actual, on_one_device(name, make, dtype=dtype), tolerance, name)


@pytest.mark.parametrize("name", helpers.OPTIMIZERS)
def test_optimizer_on_three_replicas_equals_one_device(name, on_one_device):
    make, dtype, tolerance = rule(name)
    expected = on_one_device(name, make, dtype=dtype)
    helpers.assert_close(train(make, 3, dtype=dtype, in_graph=False), expected, tolerance, name)


@pytest.mark.parametrize("replicas", [2, 4])
def test_float32_on_replicas_equals_one_device(replicas, on_one_device):
    def make():
        return optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5, use_ema=True)

    expected = on_one_device("float32", make, dtype="float32")
    helpers.assert_close(train(make, replicas, dtype="float32"), expected, helpers.FLOAT32)


@pytest.mark.parametrize(
    "options", [{"global_clipnorm": 0.3}, {"gradient_accumulation_steps": 2}], ids=helpers.stable_id
)
def test_sparse_gradients_on_replicas_equal_dense_on_one_device(options, on_one_device):
    def make():
        return optimizers.Adagrad(0.1, **options)

    expected = on_one_device(str(options), make)
    helpers.assert_close(train(make, 3, sparse=True), expected, helpers.FLOAT64)


@pytest.mark.parametrize("dtype, digits", [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_aggregation_in_16_bits_keeps_its_digits(dtype, digits, on_one_device):
    def plain():
        return optimizers.SGD(0.1)

    def short():
        return optimizers.SGD(0.1, gradient_aggregator=optimizers.HalfPrecisionAggregation(dtype))

    actual = train(short, 3, dtype="float32", in_graph=False)
    helpers.assert_close(actual, on_one_device("sgd", plain, dtype="float32"), digits)


def test_gradients_that_are_reduced_already_are_not_summed_again():
    strategy = helpers.mirrored(2)
    with strategy.scope():
        variables = [keras.Variable([0.0]) for _ in range(4)]
        by_piece = optimizers.SGD(1.0, gradient_aggregator=optimizers.no_aggregation)
        plain = [optimizers.SGD(1.0) for _ in range(3)]

    @tf.function
    def step():
        def on_replica():
            by_piece.apply_gradients([(tf.ones([1]), variables[0])])
            plain[0].apply_gradients([(tf.ones([1]), variables[1])], skip_gradients_aggregation=True)
            plain[1].apply_gradients([(tf.ones([1]), variables[2])], experimental_aggregate_gradients=False)
            plain[2].apply_gradients([(tf.ones([1]), variables[3])])

        strategy.run(on_replica)

    step()
    assert [v.numpy()[0] for v in variables] == [-1.0, -1.0, -1.0, -2.0]


@pytest.mark.long
def test_small_gradients_share_one_collective_with_the_same_bits(monkeypatch):
    sent = []
    original = aggregators.sums

    def counting(tensors):
        sent.append(len(tensors))
        return original(tensors)

    monkeypatch.setattr(aggregators, "sums", counting)
    strategy, variable = helpers.mirrored(3), tf.Variable(0.0)
    parts = [np.random.default_rng(i).normal(size=(3, 5, 4)).astype("float32") for i in range(6)]
    pairs = {}
    for below in (0, aggregators.SMALL):

        @tf.function
        def reduce(below=below):
            def on_replica():
                r = tf.distribute.get_replica_context().replica_id_in_sync_group
                mine = [(tf.gather(p, r), variable) for p in parts]
                return [g for g, _ in aggregators.all_reduce_sum_pairs(mine, below)]

            return strategy.run(on_replica)

        pairs[below] = [strategy.experimental_local_results(x)[0].numpy() for x in reduce()]
    assert sent == [6] * 3 + [1] * 3
    for alone, packed in zip(*pairs.values()):
        np.testing.assert_array_equal(alone, packed)
