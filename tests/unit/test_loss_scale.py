"""The state machine of the loss scale, compared with hand-computed numbers."""

import pytest
import tensorflow as tf

from unisono.optimizers.loss_scale import scale_rule as ls


def initial_state(scale):
    zero = tf.zeros((), tf.int64)
    return ls.ScaleState(tf.constant(scale, tf.float32), zero, zero, zero)


def run(finite_checks, rule, initial):
    state = initial_state(initial)
    for finite in finite_checks:
        state = ls.next_state(state, tf.constant(finite), rule)
    return [field.numpy().item() for field in state]


T, F = True, False
TEN, THREE = ls.ScaleRule(growth_steps=10), ls.ScaleRule(growth_steps=3)
LIMITED = ls.ScaleRule(growth_steps=1, min_scale=6.0, max_scale=20.0)
FIXED = ls.ScaleRule(1, min_scale=1000.0, max_scale=1000.0)
# finite checks, rule, initial scale -> scale, finite steps since it changed, skipped steps, consecutive skipped steps
CASES = {
    "an overflow halves it and starts counting anew": ([T, T, F], TEN, 2.0**15, [2.0**14, 0, 1, 1]),
    "finite steps are counted": ([F, T, T], TEN, 2.0**15, [2.0**14, 2, 1, 0]),
    "it waits for growth_steps": ([T] * 2, THREE, 2.0**15, [2.0**15, 2, 0, 0]),
    "it doubles at growth_steps": ([T] * 3, THREE, 2.0**15, [2.0**16, 0, 0, 0]),
    "then it counts again": ([T] * 4, THREE, 2.0**15, [2.0**16, 1, 0, 0]),
    "an overflow in between restarts the count": ([T, T, F, T, T], THREE, 2.0**15, [2.0**14, 2, 1, 0]),
    "consecutive and all skips are counted": ([F, T, F, F], ls.ScaleRule(), 2.0**15, [2.0**12, 0, 3, 2]),
    "it stays above its lower limit": ([F] * 5, LIMITED, 8.0, [6.0, 0, 5, 5]),
    "it stays below its upper limit": ([T] * 5, LIMITED, 8.0, [20.0, 0, 0, 0]),
    "it never becomes infinite": ([T] * 200, ls.ScaleRule(growth_steps=1), 2.0**15, [2.0**127, 0, 0, 0]),
    "it never becomes zero": ([F] * 200, ls.ScaleRule(), 2.0**15, [2.0**-14, 0, 200, 200]),
    "a fixed one never moves, and counts": ([T, F, T, F, F], FIXED, 1000.0, [1000.0, 0, 3, 2]),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_scale_after_these_steps(case):
    *arguments, expected = CASES[case]
    assert run(*arguments) == expected


def test_rule_whose_limits_are_equal_is_fixed():
    assert ls.ScaleRule(min_scale=1000.0, max_scale=1000.0).is_fixed and not ls.ScaleRule().is_fixed


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
