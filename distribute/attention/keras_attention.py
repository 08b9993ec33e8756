"""`keras.ops.dot_product_attention`, and the layers that call it, in our steps."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.patches import wrap
from ...compat.wrong_use import WrongUse
from ..hardware.devices import computes_on_gpu
from ..step_context import current_step
from .choice import BLOCKS, Problem, choose
from .operation import attend


def _attention(
    original: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: Any = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: Any = None,
) -> Any:
    """Replace `dot_product_attention` of Keras' TensorFlow backend.

    Outside our steps (where a model is built, called or exported) it is Keras' own, and `flash_attention=True` is no error.
    """
    if (step := current_step()) is None:
        return original(query, key, value, bias, mask, scale, is_causal, False, attn_logits_soft_cap)
    q, k, v = map(tf.convert_to_tensor, (query, key, value))
    dtype = keras.backend.result_type(q.dtype, k.dtype, v.dtype)
    q, k, v = (tf.cast(each, dtype) for each in (q, k, v))
    mask = None if mask is None else tf.convert_to_tensor(mask)
    queries, keys = (None if each.shape.rank != 4 else each.shape[1] for each in (q, k))
    problem = Problem(
        computes_on_gpu(),
        queries,
        keys,
        dtype,
        is_causal and mask is None,
        bias is not None,
        _find_wrong_shapes(q, k, v, mask),
        flash_attention,
        keras.config.is_flash_attention_enabled() is False,
    )
    choice = choose(problem)
    if choice.body == BLOCKS or problem.on_gpu:
        step.attention.add(choice)
    if flash_attention and choice.body != BLOCKS:
        raise WrongUse(
            f"`flash_attention=True` cannot be met: {choice.reason}. Leave the argument out to use Keras' own computation."
        )
    if choice.body != BLOCKS:
        return original(q, k, v, bias, mask, scale, is_causal, False)
    return _compute_in_blocks(original, q, k, v, mask, scale, is_causal)


def _find_wrong_shapes(q: Any, k: Any, v: Any, mask: Any) -> str | None:
    """Return why blocks cannot take these extents or this mask; None: they can."""
    if any(each.shape.rank != 4 or None in each.shape[2:] for each in (q, k, v)):
        return "its inputs need four axes, and a known number of heads and extent"
    (queries, heads), (keys, shared) = q.shape[1:3], k.shape[1:3]
    if heads % shared or heads > shared == 1 or v.shape[1:3] != k.shape[1:3] or q.shape[3] != k.shape[3]:
        return f"the shapes {q.shape}, {k.shape} and {v.shape} do not fit"
    if mask is None:
        return None
    if mask.dtype != tf.bool or mask.shape.rank is None or mask.shape.rank > 4:
        return "its mask is not a boolean tensor of at most four axes"
    fits = (extent in (1, whole) for extent, whole in zip(mask.shape[::-1], (keys, queries, heads)))
    return None if all(fits) else f"the shape {mask.shape} of its mask does not fit"


def _compute_in_blocks(
    original: Callable[..., Any], q: Any, k: Any, v: Any, mask: Any, scale: Any, causal: bool
) -> tf.Tensor:
    """Return [batch, queries, heads, extent of values]: heads in groups that share a head of keys, as Keras repeats them."""
    shared = k.shape[2]
    group = q.shape[2] // shared
    if scale is None:  # as Keras rounds it, also in float64
        scale = 1 / np.sqrt(np.float32(q.shape[3]))

    def plain(q: Any, k: Any, v: Any) -> Any:
        flat = tf.reshape(q, [-1, q.shape[1], group * shared, q.shape[4]])
        out = original(flat, k, v, None, mask, 1.0, causal, False)
        return tf.reshape(out, [-1, q.shape[1], shared, group, v.shape[3]])

    q = _split_heads(q * tf.cast(scale, q.dtype), 2, shared, group)
    grouped = mask
    if mask is not None:
        grouped = mask[(None,) * (4 - mask.shape.rank)]
        grouped = _split_heads(grouped, 1, *((1, 1) if grouped.shape[1] == 1 else (shared, group)))
    out = attend(q, k, v, grouped, causal, plain)
    if group == 1:
        return tf.squeeze(out, 3)
    return tf.reshape(out, [-1, q.shape[1], shared * group, v.shape[3]])


def _split_heads(x: Any, axis: int, shared: int, group: int) -> tf.Tensor:
    """Split an axis of heads into those of keys and their groups."""
    if group == 1:
        return tf.expand_dims(x, axis + 1)
    extents = [*x.shape[:axis], shared, group, *x.shape[axis + 1 :]]
    return tf.reshape(x, [-1 if extent is None else extent for extent in extents])


wrap("dot_product_attention", _attention)
