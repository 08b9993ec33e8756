"""The state machine of the loss scale, compared with hand-computed numbers."""

import numpy as np
import pytest
import tensorflow as tf

from unisono.optimizers.loss_scale import scale_rule as ls


def initial_state(scale):
    zero = tf.zeros((), tf.int64)
    return ls.ScaleState(tf.constant(scale, tf.float32), zero, zero, zero)


def run(finite_checks, rule, initial=2.0**15):
    state = initial_state(initial)
    for finite in finite_checks:
        state = ls.next_state(state, tf.constant(finite), rule)
    return [field.numpy().item() for field in state]


def test_loss_scale_halves_on_overflow_and_starts_counting_anew():
    assert run([True, True, False], ls.ScaleRule(growth_steps=10)) == [2.0**14, 0, 1, 1]


def test_loss_scale_counts_finite_steps_and_keeps_the_scale():
    assert run([False, True, True], ls.ScaleRule(growth_steps=10)) == [2.0**14, 2, 1, 0]


def test_loss_scale_doubles_at_exactly_growth_steps():
    rule = ls.ScaleRule(growth_steps=3)
    assert run([True] * 2, rule) == [2.0**15, 2, 0, 0]
    assert run([True] * 3, rule) == [2.0**16, 0, 0, 0]
    assert run([True] * 4, rule) == [2.0**16, 1, 0, 0]


def test_loss_scale_overflow_in_between_restarts_the_count():
    rule = ls.ScaleRule(growth_steps=3)
    assert run([True, True, False, True, True], rule) == [2.0**14, 2, 1, 0]
    assert run([True, True, False, True, True, True], rule) == [2.0**15, 0, 1, 0]


def test_loss_scale_counts_skips_in_a_row_and_in_all():
    assert run([False, True, False, False], ls.ScaleRule())[2:] == [3, 2]


def test_loss_scale_stays_within_its_limits():
    rule = ls.ScaleRule(growth_steps=1, min_scale=6.0, max_scale=20.0)
    assert run([False] * 5, rule, 8.0)[0] == 6.0
    assert run([True] * 5, rule, 8.0)[0] == 20.0


def test_loss_scale_never_becomes_infinite_or_zero():
    assert run([True] * 200, ls.ScaleRule(growth_steps=1))[0] == 2.0**127
    assert run([False] * 200, ls.ScaleRule())[0] == 2.0**-14


def test_loss_scale_fixed_never_moves_but_counts():
    rule = ls.ScaleRule(growth_steps=1, min_scale=1000.0, max_scale=1000.0)
    assert rule.fixed
    assert run([True, False, True, False, False], rule, 1000.0) == [1000.0, 0, 3, 2]


def test_loss_scale_grows_as_computed_manually_over_5000_steps():
    """Doubles every 2000 steps, overflows at steps 4,100 and 4,101."""
    rule = ls.ScaleRule()

    @tf.function
    def train(finite_checks):
        def body(state, finite):
            return ls.next_state(ls.ScaleState(*state), finite, rule)

        return tf.scan(body, finite_checks, initial_state(2.0**15))

    finite_checks = np.ones(5000, bool)
    finite_checks[[4100, 4101]] = False
    scale, good, skipped, in_a_row = (field.numpy() for field in train(tf.constant(finite_checks)))
    expected = np.empty(5000, np.float32)
    expected[:1999] = 2.0**15
    expected[1999:3999] = 2.0**16
    expected[3999:4100] = 2.0**17
    expected[4100] = 2.0**16
    expected[4101:] = 2.0**15
    np.testing.assert_array_equal(scale, expected)
    assert (good[-1], skipped[-1], in_a_row[4101], in_a_row[-1]) == (898, 2, 2, 0)


def test_loss_scale_state_keeps_dtypes_and_shapes():
    state = ls.next_state(initial_state(4.0), True, ls.ScaleRule())
    assert [field.dtype for field in state] == [tf.float32, tf.int64, tf.int64, tf.int64]
    assert all(field.shape == () for field in state)


def test_loss_scale_is_the_same_under_xla():
    rule = ls.ScaleRule(growth_steps=2)
    step = tf.function(lambda state, finite: ls.next_state(state, finite, rule), jit_compile=True)
    state = initial_state(8.0)
    for finite in (True, True, False, True):
        state = step(state, tf.constant(finite))
    assert [field.numpy().item() for field in state] == [8.0, 1, 1, 0]


def test_make_rule_defaults():
    assert ls.make_rule(2.0**15, 2000) == (2.0**15, ls.ScaleRule(2000, 2.0**-14, 2.0**127))
    assert ls.make_rule(2.0**-20, 5)[1].min_scale == 2.0**-20


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0, 1), ValueError, "`initial_scale` must be positive.*Received: 0"),
        ((-1.0, 1), ValueError, "`initial_scale` must be positive.*Received: -1.0"),
        ((float("nan"), 1), ValueError, "initial_scale.*nan"),
        ((float("inf"), 1), ValueError, "initial_scale.*inf"),
        ((1e39, 1), ValueError, "initial_scale.*float32"),
        (("dynamic", 1), TypeError, "initial_scale.*'dynamic'"),
        ((True, 1), TypeError, "initial_scale.*True"),
        ((1.0, 0), ValueError, "`dynamic_growth_steps` must be a whole number of at least 1. Received: 0"),
        ((1.0, 2.5), ValueError, "dynamic_growth_steps.*2.5"),
        ((1.0, None), ValueError, "dynamic_growth_steps.*None"),
        ((1.0, 1, 0.0), ValueError, "min_scale.*0.0"),
        ((1.0, 1, 2.0), ValueError, r"`initial_scale` \(1\) must be between `min_scale` \(2\)"),
        ((8.0, 1, 1.0, 4.0), ValueError, r"max_scale` \(4\)"),
        ((8.0, 1, 16.0, 4.0), ValueError, r"`min_scale` \(16\) and `max_scale` \(4\)"),
    ],
)
def test_make_rule_rejects_with_the_argument_and_its_value(arguments, error, words):
    with pytest.raises(error, match=words):
        ls.make_rule(*arguments)
