"""The copies of a variable are bitwise identical, whatever sums an optimizer or a custom stage computes.

TensorFlow's graph optimizer sorts the terms of a sum by name, and operation names differ between replicas. With a dozen
variables the names of one replica sort differently from those of another.
"""

import functools
import operator

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono import optimizers

pytestmark = pytest.mark.as_for_users  # the graph optimizer, which sorts the terms

STEPS = 3


def norm_by_hand(pairs):
    """A chain of additions, which becomes one sum with many terms."""
    norm = tf.sqrt(functools.reduce(operator.add, [tf.reduce_sum(tf.square(g)) for g, _ in pairs]))
    return [(g / norm, v) for g, v in pairs]


def mean_gradient(pairs):
    """Sums over entire gradients."""
    mean = tf.add_n([tf.reshape(g, [-1])[:3] for g, _ in pairs]) / len(pairs)
    return [(g + mean[0], v) for g, v in pairs]


class ThreeTerms(keras.optimizers.Optimizer):
    """A custom update rule, with optimizer state and a sum of several terms."""

    def build(self, variables):
        super().build(variables)
        self.slots = [self.add_variable_from_reference(v, f"slot{i}") for v in variables for i in range(2)]

    def update_step(self, gradient, variable, learning_rate):
        index = 2 * self._get_variable_index(variable)
        m, n = self.slots[index], self.slots[index + 1]
        self.assign(m, 0.9 * m + 0.1 * gradient)
        self.assign(n, 0.99 * n + 0.01 * gradient)
        total = m + gradient * 0.3 + n * 0.7 + variable * 0.01
        self.assign_sub(variable, learning_rate * total)


class Wavy(keras.optimizers.schedules.LearningRateSchedule):
    """A custom schedule."""

    def __call__(self, step):
        t = tf.cast(step, tf.float32)
        return 0.01 + 0.003 * tf.sin(t) + 0.0007 * tf.cos(3 * t) + 0.0001 * tf.sin(7 * t)

    def get_config(self):
        return {}


def rounded(weights):
    """A custom constraint."""
    return weights * 0.999 + 1e-4 * tf.sin(weights) + 1e-5 * tf.cos(weights) + 1e-6 * tf.reduce_sum(weights)


OURS = [
    optimizers.centralize,
    optimizers.AdaptiveClip(0.5),
    optimizers.AddDecayedWeights(0.1),
    optimizers.GradientNoise(0.01),
    optimizers.ClipByNorm(0.5),
    optimizers.ClipByGlobalNorm(0.4),
]
RULES = {name: getattr(optimizers, name) for name in helpers.OPTIMIZERS}
STAGES = {
    "global_clipnorm": lambda: optimizers.SGD(0.01, global_clipnorm=0.1, weight_decay=0.01, use_ema=True),
    "clipnorm": lambda: optimizers.SGD(0.01, clipnorm=0.1, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda: optimizers.SGD(0.01, global_clipnorm=0.1, gradient_accumulation_steps=2),
    "ready pieces": lambda: optimizers.SGD(0.01, gradient_transformers=OURS),
}
USERS = {
    "transformer": lambda: optimizers.SGD(0.01, gradient_transformers=[norm_by_hand, mean_gradient]),
    "transformer and loss scale": lambda: unisono.mixed_precision.LossScaleOptimizer(
        optimizers.SGD(0.01, gradient_transformers=[norm_by_hand], gradient_accumulation_steps=2)
    ),
    "rule": lambda: optimizers.adopt(ThreeTerms(0.01)),
    "schedule": lambda: optimizers.SGD(Wavy()),
    "constraint": lambda: optimizers.SGD(0.01),
}


def variables_for(case, count):
    made = []
    for i in range(count):
        value = np.random.default_rng(i).normal(size=(3, 5 + 7 * i)).astype("float32")
        made.append(keras.Variable(value, name=f"v{i}"))
        made[-1].constraint = rounded if case == "constraint" else None
    return made


@pytest.mark.parametrize(
    "cases, count", [(RULES, 3), (STAGES, 12), (USERS, 12)], ids=["rules", "stages", "users"]
)
@pytest.mark.long
def test_copies_are_equal_bit_for_bit(cases, count):
    strategy = helpers.mirrored(2)
    with strategy.scope():
        programs = {case: (variables_for(case, count), make()) for case, make in cases.items()}
    numbers = tf.random.Generator.from_seed(1)

    def on_replica(gradients):
        with tf.name_scope(""):  # as in a step of `fit`: the replicas number their operations together
            for variables, optimizer in programs.values():
                optimizer.apply_gradients(zip(gradients, variables))

    @tf.function
    def step():
        gradients = [numbers.normal((3, 5 + 7 * i)) for i in range(count)]
        strategy.run(on_replica, args=(gradients,))

    for _ in range(STEPS):
        step()
    for case, (variables, optimizer) in programs.items():
        assert helpers.copies_are_equal([*variables, *optimizer.variables], strategy), case


@pytest.mark.long
def test_copies_are_equal_after_a_fit_with_a_global_norm():
    keras.utils.set_random_seed(1)
    strategy = helpers.mirrored(2)
    with strategy.scope():
        hidden = [keras.layers.Dense(units, "relu") for units in (32, 17, 9)]
        model = unisono.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizers.Adam(1e-2, global_clipnorm=0.1), loss, jit_compile=False)
    x = np.random.default_rng(1).normal(size=(201, 8)).astype("float32")
    model.fit(x, (x[:, 0] > 0).astype("int32"), batch_size=20, epochs=1, verbose=0)
    assert helpers.copies_are_equal([*model.variables, *model.optimizer.variables], strategy)
