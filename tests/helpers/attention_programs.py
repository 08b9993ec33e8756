"""Models with attention of every kind, by name: `PROGRAMS`. Each takes texts of ten steps, and returns a number a step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

L, ops = keras.layers, keras.ops
R = np.random.default_rng(0)
SAMPLES, TOKENS, OTHERS = 9, 10, 7
X = R.normal(size=(SAMPLES, TOKENS, 6))
Y = R.normal(size=(SAMPLES, TOKENS, 1))
# Words of texts of different lengths; 0 is padding, and the first text has nothing else.
WORDS = R.integers(1, 12, (SAMPLES, TOKENS)) * (np.arange(TOKENS) < np.arange(SAMPLES)[:, None] * 2)
WORDS = WORDS.astype("int32")
EARLIER = np.tril(np.ones((TOKENS, TOKENS), "bool"))
SHAPES = [(10, 10), (1, 10), (10, 1), (1, 10, 10), (4, 1, 1), (1, 1, 1, 10), (1, 4, 10, 10), (1, 1, 10, 1)]


class Own(L.Layer):
    """Projects its input to queries, keys and values, and calls `attend` with them."""

    def __init__(
        self, attend: Any, heads: int = 4, shared: int = 4, values: int = 3, scaled: bool = False
    ) -> None:
        super().__init__()
        self.attend = attend
        self.projections = [
            L.EinsumDense("btm,mnh->btnh", (None, n, h))
            for n, h in ((heads, 3), (shared, 3), (shared, values))
        ]
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale", trainable=scaled)

    def build(self, shape: Any) -> None:
        for each in self.projections:
            each.build(shape)
        super().build(shape)

    def call(self, x: Any) -> Any:
        out = self.attend(self, x, *(each(x) for each in self.projections))
        return ops.reshape(out, (-1, *out.shape[1:-2], out.shape[-2] * out.shape[-1]))


def calling(**options: Any) -> Any:
    """A function that passes these options to the function of Keras."""
    return lambda self, x, q, k, v: ops.dot_product_attention(q, k, v, **options)


def of_scale(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """With a learned scale."""
    return ops.dot_product_attention(q, k, v, scale=self.scale, is_causal=True)


def of_bias(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """With a bias on the scores, which grows with distance."""
    at = ops.arange(TOKENS, dtype=q.dtype)
    return ops.dot_product_attention(q, k, v, bias=-ops.abs(at[:, None] - at) * self.scale)


def of_masks(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """The sum over masks of every shape that has no samples; their first keys are hidden from every query."""
    drawn = np.random.default_rng(1)
    masks = [drawn.random(shape) < 0.6 for shape in SHAPES]
    return sum(ops.dot_product_attention(q, k, v, mask=tf.constant(m), is_causal=m.ndim == 3) for m in masks)


def of_samples(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """Masks that the samples determine; one query in two sees no key."""
    seen = (
        x[:, None, :, :1] > 0.0,
        x[:, None, None, :, 0] > 0.5,
        ops.transpose(q[..., :1] > 0.3, (0, 2, 1, 3)),
    )
    return sum(ops.dot_product_attention(q, k, v, mask=mask, is_causal=mask.shape[1] == 4) for mask in seen)


def in_nested_graphs(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """In a function, a branch and a loop of the graph."""
    attend = calling(is_causal=True)
    q = tf.function(lambda q: attend(self, x, q, k, v))(q)
    q = tf.cond(tf.reduce_sum(self.scale) > 0.0, lambda: attend(self, x, q, k, v), lambda: q)
    return tf.while_loop(lambda i, q: i < 2, lambda i, q: (i + 1, attend(self, x, q, k, v)), (0, q))[1]


def of_each_sample(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """One sample at a time."""

    def attend(each: Any) -> Any:
        return ops.dot_product_attention(*(part[None] for part in each), is_causal=True)[0]

    return tf.map_fn(attend, (q, k, v), fn_output_signature=q.dtype)


def rematerialized(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """Rematerialized in the backward pass, and with a gradient of the queries alone."""
    attend = tf.recompute_grad(lambda q, k, v: ops.dot_product_attention(q, k, v, is_causal=True))
    return attend(q, k, v) + ops.dot_product_attention(q, *map(ops.stop_gradient, (k, v)))


def across_samples(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """Queries see the keys of all samples at their own position."""
    turned = (ops.transpose(each, (1, 0, 2, 3)) for each in (q, k, v))
    return ops.transpose(ops.dot_product_attention(*turned), (1, 0, 2, 3))


def of_mixed_types(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """Keys of a lower precision than the queries."""
    return ops.dot_product_attention(q, ops.cast(k, "float32"), v, is_causal=True)


def of_one_head(self: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    """All heads share one head of keys, which Keras repeats only for groups."""
    return ops.dot_product_attention(q, *(ops.repeat(each, 4, 2) for each in (k, v)))


class Latent(L.Layer):
    """Learned queries read the text, and the text reads their results (Perceiver)."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = L.MultiHeadAttention(2, 3), L.MultiHeadAttention(2, 3, value_dim=5)
        self.queries = self.add_weight(shape=(OTHERS, 6), name="queries")

    def call(self, x: Any) -> Any:
        """`keras.ops.broadcast_to` has the batch's extent."""
        latent = ops.broadcast_to(self.queries[None], (ops.shape(x)[0], OTHERS, 6))
        return self.write(x, self.read(latent, x))


def of_layer(kind: Any, *given: Any, call: Any = None, **options: Any) -> Any:
    """A layer of Keras that attends to its own input."""
    return lambda x: kind(*given, **options)(x, x, **(call or {}))


def crossed(x: Any) -> Any:
    """Fewer keys than queries, then more."""
    x = x + L.MultiHeadAttention(2, 3)(x, x[:, :OTHERS])
    few = L.GroupQueryAttention(3, 4, 2)(x[:, :OTHERS], x)
    return x + L.MultiHeadAttention(2, 3)(x, few, key=few * 2.0, use_causal_mask=True)


def of_words(x: Any) -> Any:
    """Padding is masked, and causal masks are added."""
    x = L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    return L.GroupQueryAttention(3, 4, 2)(x, x)


def with_scores(x: Any) -> Any:
    """Scores are an output that is used."""
    out, scores = L.MultiHeadAttention(2, 3)(x, x, return_attention_scores=True, use_causal_mask=True)
    return out + ops.mean(scores, 1)[..., :6]


def two_dimensional(x: Any) -> Any:
    """Attention along one axis of two, and along both."""
    x = L.Reshape((5, 2, 6))(x)
    x = L.MultiHeadAttention(2, 3, attention_axes=1)(x, x) + L.MultiHeadAttention(2, 3)(x, x)
    return L.Reshape((TOKENS, 6))(x)


def called_twice(x: Any) -> Any:
    """One layer with its weights at two places, and a frozen one."""
    shared, frozen = L.MultiHeadAttention(2, 3), L.MultiHeadAttention(2, 3, trainable=False)
    return shared(shared(x, x, use_causal_mask=True), x) + frozen(x, x)


def own(attend: Any, *extents: int, **options: Any) -> Any:
    """A custom layer."""
    return lambda x: Own(attend, *extents, **options)(x)


CAUSAL = {"use_causal_mask": True}
MHA, GQA = L.MultiHeadAttention, L.GroupQueryAttention
BLOCKS = {
    "own, causal": own(calling(is_causal=True)),
    "own, heads that share keys": own(calling(is_causal=True, flash_attention=None), 4, 2),
    "own, values of another extent": own(calling(scale=0.3), 4, 4, 5),
    "own, a learned scale": own(of_scale, scaled=True),
    "own, masks of every shape": own(of_masks),
    "own, masks of samples": own(of_samples, 4, 2),
    "own, nested graphs": own(in_nested_graphs),
    "own, sample by sample": own(of_each_sample),
    "own, rematerialized": own(rematerialized),
    "own, one head of keys": own(of_one_head, 4, 1),
    "own, mixed types": own(of_mixed_types),
    "own, latent queries": lambda x: Latent()(x),
    "multi-head": of_layer(MHA, 2, 3),
    "multi-head, causal": of_layer(MHA, 2, 3, call=CAUSAL),
    "multi-head, a mask": of_layer(MHA, 2, 3, call={"attention_mask": EARLIER[None]}),
    "multi-head, a gate and a window": of_layer(MHA, 2, 3, call=CAUSAL, use_gate=True, sliding_window=4),
    "multi-head, values and outputs": of_layer(MHA, 2, 3, value_dim=5, output_shape=6, use_bias=False),
    "multi-head, across": crossed,
    "multi-head, twice": called_twice,
    "multi-head, padding": of_words,
    "grouped, causal": of_layer(GQA, 3, 4, 2, call=CAUSAL),
    "grouped, a gate and a window": of_layer(GQA, 3, 4, 1, use_gate=True, sliding_window=3),
}
PLAIN = {
    "own, a bias": own(of_bias, scaled=True),
    "own, never": own(calling(flash_attention=False)),
    "own, across samples": own(across_samples),
    "multi-head, dropout": of_layer(MHA, 2, 3, dropout=0.3, seed=4, call=CAUSAL),
    "multi-head, scores": with_scores,
    "multi-head, two axes": two_dimensional,
    "attention": lambda x: L.Attention(use_scale=True, score_mode="dot")(
        [x, x[:, :OTHERS]], use_causal_mask=True
    ),
    "additive attention": lambda x: L.AdditiveAttention()([x, x]),
}
PROGRAMS = BLOCKS | PLAIN


def build(name: str, kind: Any = keras.Model) -> Any:
    """A new model with equal weights for each `kind`."""
    keras.utils.set_random_seed(3)
    text = name.endswith("padding")
    inputs = keras.Input((TOKENS,), dtype="int32") if text else keras.Input((TOKENS, 6))
    x = L.Embedding(12, 6, mask_zero=True)(inputs) if text else inputs
    return kind(inputs, L.Dense(1)(PROGRAMS[name](x)))


def inputs_of(name: str) -> Any:
    """What the model is trained with."""
    return WORDS if name.endswith("padding") else X
