"""The loss scale as a small state machine: pure functions, no variables."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ...compat.wrong_use import WrongUse
from ...distribute.arguments import show, whole_number

GROWTH = 2.0
BACKOFF = 0.5
FLOOR = 2.0**-14
"""Default `min_scale`: the smallest normal float16."""
CEILING = 2.0**127
"""Default `max_scale`: the largest power of two in float32."""


class ScaleRule(NamedTuple):
    """How the scale moves; constants of a run."""

    growth_steps: int = 2000  # consecutive finite steps after which the scale doubles
    min_scale: float = FLOOR  # the scale never goes below
    max_scale: float = CEILING  # nor above; equal to `min_scale`: a fixed scale

    @property
    def is_fixed(self) -> bool:
        """Whether the scale never moves."""
        return self.min_scale == self.max_scale


class ScaleState(NamedTuple):
    """The scale and its counters; the same on all replicas."""

    scale: Any  # float32 scalar; the next loss is multiplied by it
    good_steps: Any  # int64 scalar; finite steps since the scale last moved or an overflow
    skipped_steps: Any  # int64 scalar; steps skipped since the start of training
    skipped_in_a_row: Any  # int64 scalar; steps skipped since the last finite one


def next_state(state: ScaleState, finite: Any, rule: ScaleRule) -> ScaleState:
    """Return one step of the state machine.

        finite:      c' = c + 1;  if c' = N:  S' = min(2 S, S_max), c' = 0;  else S' = S
        not finite:  c' = 0;                  S' = max(S / 2, S_min)

    with the scale S, the count of finite steps c and N = `growth_steps`; `finite`, a bool scalar, says whether every
    aggregated gradient of the step is finite. Doubling, halving and N = 2000 are Keras' numbers.

    Context: pure; eager, in a graph, under XLA.

    Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2.
    """
    scale, good, skipped, in_a_row = (tf.convert_to_tensor(field) for field in state)
    finite = tf.convert_to_tensor(finite, tf.bool)
    one, zero = tf.ones((), good.dtype), tf.zeros((), good.dtype)
    counted = good + one
    grow = tf.logical_and(finite, counted >= rule.growth_steps)
    if rule.is_fixed:
        new_scale = scale
    else:
        # min(2 S, S_max), written so that 2 S is never infinite.
        larger = tf.minimum(scale, rule.max_scale / GROWTH) * GROWTH
        smaller = tf.maximum(scale * BACKOFF, tf.minimum(scale, rule.min_scale))
        new_scale = tf.where(finite, tf.where(grow, larger, scale), smaller)
    return ScaleState(
        scale=new_scale,
        good_steps=tf.where(tf.logical_and(finite, tf.logical_not(grow)), counted, zero),
        skipped_steps=skipped + tf.cast(tf.logical_not(finite), skipped.dtype),
        skipped_in_a_row=tf.where(finite, tf.zeros_like(in_a_row), in_a_row + tf.ones_like(in_a_row)),
    )


def make_rule(
    initial_scale: Any, growth_steps: Any, min_scale: Any = None, max_scale: Any = None
) -> tuple[float, ScaleRule]:
    """Return `(initial_scale, rule)`, checked; arguments and errors are those of `LossScaleOptimizer`."""
    initial = positive_scale("initial_scale", initial_scale)
    low = min(FLOOR, initial) if min_scale is None else positive_scale("min_scale", min_scale)
    high = max(CEILING, initial) if max_scale is None else positive_scale("max_scale", max_scale)
    growth_steps = whole_number("dynamic_growth_steps", growth_steps)
    if not low <= initial <= high:
        raise WrongUse(
            f"`initial_scale` ({initial:g}) must be between `min_scale` ({low:g}) and `max_scale` ({high:g}): "
            "change the limit or the scale."
        )
    return initial, ScaleRule(growth_steps, low, high)


def positive_scale(name: str, value: Any) -> float:
    """Return `value` as a float if it is a number that is positive and finite in float32."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__") or np.ndim(value):
        raise WrongUse(
            f"`{name}` must be a positive number. Received: {show(value)} of type {type(value).__name__}"
        )
    number = float(value)
    if not 0 < number <= 2.0**127 * (2 - 2.0**-23):
        raise WrongUse(
            f"`{name}` must be positive and finite in float32, such as 2.0**15. Received: {show(value)}"
        )
    return number
