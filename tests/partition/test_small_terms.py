"""A plain loss plus a small term that compares samples: the small term keeps its relative accuracy in every precision.

Errors are relative to the effect of the small term: the plain loss has a zero gradient over all samples, but not over
a part of them, and there it rounds the small term.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, copies_are_equal, mirrored, scope
from partition_in_parts import Parts

import unisono

_R = np.random.default_rng(0)
X = np.stack([_R.permutation(np.arange(-3, 4)) for _ in range(4)], 1) / 8.0
W = _R.normal(size=(4, 3))
mean, total = tf.reduce_mean, tf.reduce_sum


def _contrastive(z):
    z = tf.math.l2_normalize(z + 1.5, 1)
    return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(z)[0]), z @ tf.transpose(z)))


def _covariance(z):
    z -= mean(z, 0)
    return total((tf.matmul(z, z, transpose_a=True) / (tf.cast(tf.shape(z)[0], z.dtype) - 1)) ** 2)


TERMS = {
    "variance": lambda z: total(tf.math.reduce_variance(z, 0)),
    "product of means": lambda z: mean(z[:, 0] + 1.0) * mean(z[:, 1] ** 2),
    "maximum": lambda z: tf.reduce_max(z) + tf.reduce_min(z[:, 1]),
    "ratio": lambda z: total(z**2) / total(tf.exp(z)),
    "contrastive": _contrastive,
    "mean of chosen samples": lambda z: mean(tf.boolean_mask(z, z[:, 0] > 0) ** 2),
    "entropy of the mean": lambda z: (
        -total((p := mean(tf.nn.softmax(2 * z + [0.0, 1, 2]), 0)) * tf.math.log(p))
    ),
    "covariance": _covariance,
}
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2, "float16": 3e-3}


@pytest.mark.short("float32-6 0 1")
@pytest.mark.parametrize(
    "samples", [(3, 4), (2, 3, 2), (2, 2, 2, 1), (6, 0, 1)], ids=lambda n: " ".join(map(str, n))
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_small_term_is_as_right_as_a_large_one(dtype, samples):
    half = dtype.endswith("16")
    single = tf.float32 if half else tf.as_dtype(dtype)

    sizes = (1e-1, 1e-3) if dtype == "float16" else (1e-1, 1e-3, 1e-6)

    def fn(x):
        w, found = tf.constant(W, single), []
        for term in TERMS.values():
            for eps in sizes:
                with tf.GradientTape() as tape:
                    tape.watch(w)
                    z = tf.cast(tf.cast(x, dtype) @ tf.cast(w, dtype), single)
                    small = eps * term(z)
                    loss = total(tf.cast(x, single) @ w) / 8 + small
                found += [small / eps, tape.gradient(loss, w) / eps]
        return found

    parts = Parts(fn, X)
    whole = parts.on_one_device()
    for copy in parts.on_replicas(samples, known=samples[-1] != 2):
        for number, (found, expected) in enumerate(zip(copy, whole, strict=True)):
            rounded = 8 * np.finfo(single.as_numpy_dtype).eps / sizes[number // 2 % len(sizes)]
            assert_close(found, expected, TOLERANCES[dtype] + rounded, f"output {number}")


class Terms(unisono.Model):
    """The small terms in a loss, a log, a metric update and a state."""

    def __init__(self, eps):
        super().__init__()
        self.net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        self.eps, self.seen = eps, keras.metrics.Mean(name="seen")
        self.state = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="float32")

    def train_step(self, x):
        with tf.GradientTape() as tape:
            z = tf.cast(self.net(x), "float32")
            small = tf.add_n([term(z) for term in TERMS.values()])
            # A float16 gradient next to a small one rounds it.
            loss = mean(tf.cast(x, "float32")) + self.eps * small
            scaled = self.optimizer.scale_loss(loss)
        variables = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables))
        self.seen.update_state(self.eps * small)
        self.state.assign(self.eps * small)
        return {"small": self.eps * small, "seen": self.seen.result()}


def _trained(policy, strategy, batches, eps=1e-4, rate=1e3):
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    with scope(strategy):
        model = Terms(eps)
        model.compile(keras.optimizers.SGD(rate), jit_compile=False)
    first = [np.array(w) for w in model.net.weights]
    logs = model.fit(batches, epochs=1, verbose=0).history
    effects = [np.array(w) - before for w, before in zip(model.net.weights, first)]
    return model, logs, effects


@pytest.mark.short("float32-3")
@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_small_terms_leave_a_step_as_on_one_device(policy, replicas):
    batches = tf.data.Dataset.from_tensor_slices(X.astype("float32")).batch(7)
    strategy = mirrored(replicas)
    model, logs, effects = _trained(policy, strategy, batches)
    one, expected_logs, expected = _trained(policy, None, batches)
    tolerance = TOLERANCES[policy.removeprefix("mixed_")]
    assert_close(effects, expected, 10 * tolerance, "effects")
    for name in ("small", "seen"):
        np.testing.assert_allclose(logs[name], expected_logs[name], rtol=tolerance)
    np.testing.assert_allclose(model.state.numpy(), one.state.numpy(), rtol=tolerance)
    assert copies_are_equal(model.net.trainable_variables, strategy)


@pytest.mark.long
@pytest.mark.parametrize("sample", [0, 3, 6])
def test_overflow_on_one_replica_skips_the_custom_step_on_all(sample):
    data = np.stack([X, X, X]).reshape(21, 4).astype("float32")
    data[7 + sample] = 1e5  # not finite in float16
    batches = tf.data.Dataset.from_tensor_slices(data).batch(7)
    strategy = mirrored(3)
    model, _, effects = _trained("mixed_float16", strategy, batches, rate=1e2)
    one, _, expected = _trained("mixed_float16", None, batches, rate=1e2)
    assert_close(effects, expected, 10 * TOLERANCES["float16"], "effects")
    assert np.array(model.optimizer.iterations) == np.array(one.optimizer.iterations)
    assert np.array(model.optimizer.dynamic_scale) == np.array(one.optimizer.dynamic_scale) == 2.0**14
    assert copies_are_equal(model.net.trainable_variables, strategy)
