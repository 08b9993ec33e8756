"""Ready pieces for `gradient_transformers`: aggregated (gradient, variable) pairs in, transformed pairs out.

Each must give the same result on all replicas. Rows of `tf.IndexedSlices` are unique here.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import keras
import tensorflow as tf

from ...distribute.arguments import number, whole_number
from ...distribute.replicas import local_copy
from ..optimizer_checks import GradsAndVars, as_pairs
from . import clipping
from .aggregators import Piece, piece
from .call_options import updates_so_far
from .sparse_gradients import Pairs, dense


class _AboveZero(Piece):
    """A piece whose settings are numbers above 0."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            number(name, value, above=0, finite=False)


class _Clip(_AboveZero):
    """Clips with the function `_clip`, and the setting `_limit`."""

    _clip: ClassVar[Callable[..., list[Any]]]
    _limit = "clip_norm"

    def __call__(self, grads_and_vars: GradsAndVars) -> Pairs:
        """Context: where gradients are the same on every replica."""
        pairs, limit = list(grads_and_vars), getattr(self, self._limit)
        return [(g, v) for g, (_, v) in zip(self._clip([g for g, _ in pairs], limit), pairs)]


@piece
class ClipByGlobalNorm(_Clip):
    """Scales all gradients together down to a Euclidean norm of at most c.

        g = g * c / max(|all g|, c)

    with c = `clip_norm`, above 0.

    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", algorithm 1.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_transformers=[unisono.optimizers.ClipByGlobalNorm(1.0)])
    """

    clip_norm: float
    _clip = staticmethod(clipping.by_global_norm)


@piece
class ClipByNorm(_Clip):
    """Scales each gradient down to a Euclidean norm of at most c.

        g = g * c / max(|g|, c)

    with c = `clip_norm`, above 0.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_transformers=[unisono.optimizers.ClipByNorm(1.0)])
    """

    clip_norm: float
    _clip = staticmethod(clipping.by_norm)


@piece
class ClipByValue(_Clip):
    """Limits each number to the range from -c to c.

        g = min(max(g, -c), c)

    with c = `clip_value`, above 0.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_transformers=[unisono.optimizers.ClipByValue(0.5)])
    """

    clip_value: float
    _clip, _limit = staticmethod(clipping.by_value), "clip_value"


@piece
class AdaptiveClip(_AboveZero):
    """Scales the gradient of each unit down where it is large compared to the unit's weights.

        g_i = g_i * f max(|w_i|, eps) / |g_i|     where |g_i| / max(|w_i|, eps) > f

    The last axis of a kernel numbers its units, and the norm goes over the other axes. A vector or a scalar is one unit.

    Source: Brock et al. 2021, "High-Performance Large-Scale Image Recognition Without Normalization", equation 3.

    Attributes:
        factor: f, above 0; 0.01 suits batches of a few thousand, larger values smaller batches.
        epsilon: eps, above 0; lets weights that start at 0 grow.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_transformers=[unisono.optimizers.AdaptiveClip(0.01)])
    """

    factor: float = 0.01
    epsilon: float = 1e-3

    def __call__(self, grads_and_vars: GradsAndVars) -> Pairs:
        """Clip each unit. Slices become dense, because norms cross their rows."""
        return [(self._clip(dense(g), local_copy(v)), v) for g, v in grads_and_vars]

    def _clip(self, gradient: tf.Tensor, weights: Any) -> tf.Tensor:
        longest = self.factor * tf.maximum(_unit_norm(tf.cast(weights, gradient.dtype)), self.epsilon)
        norm = _unit_norm(gradient)
        shortened = gradient * (longest / tf.where(norm > longest, norm, tf.ones_like(norm)))
        return tf.where(norm > longest, shortened, gradient)


def _unit_norm(x: tf.Tensor) -> tf.Tensor:
    axes = None if x.shape.rank <= 1 else list(range(x.shape.rank - 1))
    return tf.sqrt(tf.reduce_sum(tf.square(x), axes, keepdims=True))


@keras.saving.register_keras_serializable("unisono")
def centralize(grads_and_vars: GradsAndVars) -> Pairs:
    """Subtract its mean from the gradient of each unit, for variables with two axes or more.

        g_i = g_i - mean(g_i)

    A unit is one index of the last axis, as in Keras' kernels; vectors and scalars stay. Slices become dense.

    Source: Yong et al. 2020, "Gradient Centralization", equation 1.

    Context: where gradients are the same on every replica.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_transformers=[unisono.optimizers.centralize])
    """
    return [(_center(g), v) for g, v in as_pairs(grads_and_vars)]


def _center(gradient: Any) -> Any:
    if gradient.shape.rank is not None and gradient.shape.rank < 2:
        return gradient
    gradient = dense(gradient)
    return gradient - tf.reduce_mean(gradient, list(range(gradient.shape.rank - 1)), keepdims=True)


@piece
class AddDecayedWeights(Piece):
    """Adds the gradient of an L2 penalty, `rate / 2 * |w|^2`.

        g = g + rate * w

    With adaptive rules this is not weight decay (the rule rescales it); for that there is `weight_decay`.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithms 1 and 2 (the violet term).

    Attributes:
        rate: 0 or above.
        min_rank: variables with fewer axes are left alone; 2 spares biases and scales.

    Examples:
        >>> optimizer = unisono.optimizers.SGD(0.1, gradient_transformers=[unisono.optimizers.AddDecayedWeights(1e-4)])
    """

    rate: float
    min_rank: int = 0

    def __post_init__(self) -> None:
        number("rate", self.rate, least=0)
        whole_number("min_rank", self.min_rank, least=0)

    def __call__(self, grads_and_vars: GradsAndVars) -> Pairs:
        """Context: where gradients are the same on every replica. Slices become dense: every row decays."""
        return self.decay(grads_and_vars, local_copy)

    def decay(self, grads_and_vars: GradsAndVars, weights_of: Callable[[Any], Any]) -> Pairs:
        """Return the pairs with decayed gradients; `weights_of` returns the weights for the gradient of a variable."""

        def add(gradient: Any, weights: Any) -> tf.Tensor:
            return gradient + self.rate * tf.cast(weights, gradient.dtype)

        return [
            (add(dense(g), weights_of(v)), v) if len(v.shape) >= self.min_rank else (g, v)
            for g, v in grads_and_vars
        ]


@piece
class GradientNoise(Piece):
    """Adds normal noise that fades with the updates t.

        g = g + N(0, eta / (1 + t)^gamma)

    The noise depends only on the seed, the update and the variable: it is the same on every replica and in a resumed run.

    Source: Neelakantan et al. 2015, "Adding Gradient Noise Improves Learning for Very Deep Networks", equation 1.

    Attributes:
        eta: variance at the first update, above 0; the paper takes 0.01, 0.3 or 1.0.
        gamma: how fast it fades, 0 or above.
        seed: whole number.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_transformers=[unisono.optimizers.GradientNoise(0.01)])
    """

    eta: float = 0.01
    gamma: float = 0.55
    seed: int = 0

    def __post_init__(self) -> None:
        number("eta", self.eta, above=0, finite=False)
        number("gamma", self.gamma, least=0)
        whole_number("seed", self.seed, least=-(2**63))

    def __call__(self, grads_and_vars: GradsAndVars) -> Pairs:
        """Context: inside an optimizer, where gradients are the same on every replica. Slices become dense."""
        count = tf.cast(updates_so_far(), tf.int64)
        pairs = list(grads_and_vars)
        return [(self._noisy(dense(g), count * len(pairs) + i), v) for i, (g, v) in enumerate(pairs)]

    def _noisy(self, gradient: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        steps = tf.cast(updates_so_far(), tf.float32)
        deviation = tf.sqrt(self.eta / tf.pow(1.0 + steps, self.gamma))
        seed = tf.stack([tf.constant(self.seed, tf.int64), number])
        noise = tf.random.stateless_normal(tf.shape(gradient), seed, dtype=tf.float32)
        return gradient + tf.cast(deviation * noise, gradient.dtype)
