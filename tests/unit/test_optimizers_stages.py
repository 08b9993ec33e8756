"""The stages of one optimizer call: their order, what users may insert, and what is rejected."""

import warnings

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono import optimizers
from unisono.optimizers.stages.call_options import CallOptions, call_options


def two_variables():
    return keras.Variable([1.0, 2.0], name="a"), keras.Variable([3.0], name="b")


def recorder(calls, name, factor=1.0):
    def stage(grads_and_vars):
        pairs = list(grads_and_vars)
        calls.append((name, [np.asarray(g).tolist() for g, _ in pairs]))
        return [(g * factor, v) for g, v in pairs]

    return stage


def test_stages_run_in_the_documented_order():
    calls = []
    optimizer = optimizers.SGD(
        1.0,
        gradient_aggregator=recorder(calls, "aggregate"),
        gradient_transformers=[recorder(calls, "first", 3.0), recorder(calls, "second")],
        clipvalue=4.0,
        loss_scale_factor=2.0,
    )
    v = keras.Variable([0.0])
    optimizer.apply_gradients([(tf.constant([4.0]), v)])
    assert calls == [("aggregate", [[4.0]]), ("first", [[2.0]]), ("second", [[6.0]])]
    assert v.numpy() == [-4.0]


def test_reordered_pairs_are_put_back():
    a, b = two_variables()
    optimizer = optimizers.SGD(1.0, gradient_transformers=[lambda pairs: reversed(pairs)])
    optimizer.apply_gradients([(tf.ones([2]), a), (tf.ones([1]), b)])
    assert a.numpy().tolist() == [0.0, 1.0]


STRANGER = tf.Variable([0.0], name="stranger")


WRONG = {
    "returns_nothing": (lambda pairs: None, "Received None"),
    "returns_fewer": (lambda pairs: pairs[:1], "Given 2 pairs, it returned 1"),
    "returns_stranger": (lambda pairs: [pairs[0], (pairs[1][0], STRANGER)], "lost the variable b"),
    "returns_none_gradient": (lambda pairs: [(None, v) for _, v in pairs], "None as gradient"),
    "returns_other_shape": (lambda pairs: [(tf.ones([7]), v) for _, v in pairs], "gradient of shape"),
    "returns_bare_gradients": (lambda pairs: [g for g, _ in pairs], "pair"),
}


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("argument", ["gradient_transformers", "gradient_aggregator"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_result_of_a_stage_is_rejected_by_name_and_changes_nothing(name, argument, in_graph):
    a, b = two_variables()
    stage, reason = WRONG[name]
    stage.__name__ = stage.__qualname__ = name
    given = {argument: [stage] if argument.endswith("s") else stage}
    optimizer = optimizers.Adam(1.0, weight_decay=0.1, **given)
    optimizer.build([a, b])
    before = [v.numpy() for v in [a, b, *optimizer.variables]]

    def apply():
        optimizer.apply_gradients([(tf.ones([2]), a), (tf.ones([1]), b)])

    with pytest.raises(ValueError, match=rf"`{argument}`: {name} .*{reason}"):
        (tf.function(apply) if in_graph else apply)()
    helpers.assert_equal(before, [a, b, *optimizer.variables])


def test_contradicting_names_of_one_argument_are_rejected():
    a, _ = two_variables()
    with pytest.raises(ValueError, match="contradicts"):
        optimizers.SGD(1.0).apply_gradients(
            [(tf.ones([2]), a)], skip_gradients_aggregation=True, experimental_aggregate_gradients=True
        )


def test_variables_without_gradient_are_named_in_one_warning():
    a, b = two_variables()
    c = keras.Variable([0.0], name="c")
    optimizer = optimizers.SGD(1.0)
    with pytest.warns(UserWarning, match=r"\['b', 'c'\]") as caught:
        optimizer.apply_gradients([(tf.ones([2]), a), (None, b), (None, c)])
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.apply_gradients([(tf.ones([2]), a), (None, b), (None, c)])
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([-1.0, 0.0], [3.0])


def test_variable_given_twice_or_unknown_is_rejected():
    a, b = two_variables()
    optimizer = optimizers.SGD(1.0)
    optimizer.build([a])
    with pytest.raises(ValueError, match="twice"):
        optimizer.apply_gradients([(tf.ones([2]), a), (tf.ones([2]), a)])
    with pytest.raises(ValueError, match=r"[Uu]nknown variable"):
        optimizer.apply_gradients([(tf.ones([1]), b)])


def minimized(use_tape, in_graph, scale):
    a, b = two_variables()
    optimizer = optimizers.SGD(0.5, loss_scale_factor=scale)

    def loss():
        return tf.reduce_sum(a**2) + tf.reduce_sum(a) * tf.reduce_sum(b)

    def step():
        if use_tape:
            with tf.GradientTape() as tape:
                value = loss()
            optimizer.minimize(value, [a, b], tape=tape)
        else:
            optimizer.minimize(loss, lambda: [a, b])

    (tf.function(step) if in_graph else step)()
    return [a.numpy(), b.numpy()]


@pytest.mark.parametrize("scale", [None, 64.0])
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_minimize_takes_tensor_with_tape_or_callable(in_graph, scale):
    results = [minimized(use_tape, in_graph, scale) for use_tape in (True, False)]
    np.testing.assert_allclose(results[0][0], [1 - 0.5 * (2 + 3), 2 - 0.5 * (4 + 3)])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_grad_loss_multiplies_the_gradient():
    v = tf.Variable(3.0)
    optimizers.SGD(1.0).minimize(lambda: v * 2.0, [v], grad_loss=tf.constant(0.25))
    assert v.numpy() == 2.5


def test_compute_gradients_returns_what_apply_gradients_takes():
    v = keras.Variable(3.0)
    optimizer = optimizers.SGD(1.0, loss_scale_factor=4.0)
    optimizer.apply_gradients(optimizer.compute_gradients(lambda: v * 2.0, [v]))
    assert v.numpy() == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 0.5},
        {"global_clipnorm": 0.5},
        {"clipvalue": 0.5},
        {"gradient_accumulation_steps": 2, "global_clipnorm": 0.1},
        {"loss_scale_factor": 4.0},
        {"gradient_transformers": [optimizers.ClipByGlobalNorm(0.3), optimizers.centralize]},
        {"gradient_transformers": [optimizers.AdaptiveClip(), optimizers.AddDecayedWeights(0.1)]},
    ],
    ids=helpers.stable_id,
)
def test_sparse_gradient_with_repeated_rows_equals_dense_through_every_stage(options):
    results = []
    for sparse in (False, True):
        table = keras.Variable(np.random.default_rng(0).normal(size=(5, 3)).astype("float32"))
        optimizer = optimizers.Adagrad(0.1, **options)
        for step in range(4):
            values = np.random.default_rng(step).normal(size=(3, 3)).astype("float32")
            gradient = tf.IndexedSlices(tf.constant(values), tf.constant([1, 3, 1]), tf.constant([5, 3]))
            optimizer.apply_gradients([(gradient if sparse else tf.convert_to_tensor(gradient), table)])
        results.append([v.numpy() for v in [table, *optimizer.variables]])
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_weights_make_the_round_trip():
    a, b = two_variables()
    optimizer = optimizers.Adam(0.1, gradient_accumulation_steps=3)
    optimizer.apply_gradients([(tf.ones([2]), a), (tf.ones([1]), b)])
    other = optimizers.Adam(0.1, gradient_accumulation_steps=3)
    other.build([a, b])
    other.set_weights(optimizer.get_weights())
    helpers.assert_equal(optimizer.get_weights(), other.get_weights())


# Micro-batches of unequal size against one large batch: the sum of the gradients over all samples, divided once.
SIZES = [3, 1, 4]


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    "options",
    [{"global_clipnorm": 0.3, "weight_decay": 0.1}, {"use_ema": True, "ema_overwrite_frequency": 2}],
    ids=helpers.stable_id,
)
def test_accumulation_of_unequal_micro_batches_is_one_step_with_all_samples(options, in_graph):
    rows = np.random.default_rng(0).normal(size=(4 * sum(SIZES), 3))
    rates = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.7)
    large, small = keras.Variable(np.ones(3), dtype="float64"), keras.Variable(np.ones(3), dtype="float64")
    one = optimizers.Adam(rates, **options)
    many = optimizers.Adam(rates, gradient_accumulation_steps=len(SIZES), **options)

    def apply_many(gradient, weight):
        many.apply_gradients([(gradient, small)], weight_total=weight)

    function = tf.function(apply_many) if in_graph else apply_many
    start = 0
    for update in range(4):
        one.apply_gradients([(tf.constant(rows[start : start + sum(SIZES)].mean(0)), large)])
        for size in SIZES:
            assert int(many.iterations) == update
            function(tf.constant(rows[start : start + size].mean(0)), tf.constant(float(size)))
            start += size
    np.testing.assert_allclose(small.numpy(), large.numpy(), rtol=1e-12)
    assert (int(many.iterations), int(one.iterations)) == (4, 4)
    for slot in one.variables[2:]:
        other = next(v for v in many.variables if v.path.split("/")[-1][-8:] == slot.path.split("/")[-1][-8:])
        np.testing.assert_allclose(other.numpy(), slot.numpy(), rtol=1e-12, err_msg=slot.path)


def test_gradient_that_is_there_in_some_micro_batches_only_is_still_counted():
    a, b = two_variables()
    optimizer = optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer.apply_gradients([(tf.ones([2]), a), (tf.ones([1]), b)])
    with pytest.warns(UserWarning, match="b"):
        optimizer.apply_gradients([(tf.ones([2]), a), (None, b)])
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([0.0, 1.0], [2.5])


def test_write_collected_before_the_update_is_made_before_it():
    v = keras.Variable([1.0])
    optimizer = optimizers.SGD(1.0)
    with keras.StatelessScope() as scope:
        v.assign([5.0])
        optimizer.apply_gradients([(tf.ones([1]), v)])
        assert scope.get_current_value(v) is None
    assert v.numpy() == [4.0]


def test_options_of_a_call_end_with_it():
    with call_options(CallOptions(weight_total=2.0)), pytest.raises(ValueError, match="No gradients"):
        optimizers.SGD(1.0).apply_gradients([(None, tf.Variable(1.0))])
    assert optimizers.stages.call_options.current_options() == CallOptions()


def test_subclass_overriding_keras_methods_is_called():
    class Doubling(optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            super().apply([2 * g for g in grads], trainable_variables)

        def _clip_gradients(self, grads):
            return [g + 1 for g in super()._clip_gradients(grads)]

    v = keras.Variable([10.0])
    Doubling(1.0).minimize(lambda: 2 * v, [v])
    assert v.numpy() == [5.0]


def test_multi_optimizer_counts_and_transforms_each_part():
    a, b = two_variables()
    optimizer_map = optimizers.OptimizerMap(optimizers.SGD(1.0, clipvalue=0.5))
    optimizer_map["b"] = keras.optimizers.SGD(2.0)
    optimizer = optimizers.MultiOptimizer(optimizer_map)
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones([2]), a), (tf.ones([1]), b)])
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([0.0, 1.0], [-1.0])
    assert [int(o.iterations) for o in [optimizer, *optimizer.optimizers]] == [2, 2, 2]
    with pytest.raises(ValueError, match="optimizers inside"):
        optimizer.gradient_transformers = [optimizers.centralize]
