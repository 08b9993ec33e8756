"""Attention in blocks of queries and keys: an online softmax, whose gradient computes the scores again.

In a graph these are two nested loops, so that compile time does not depend on the number of blocks, and memory grows with
the number of tokens instead of its square. Causal blocks above the diagonal are left out.

Scores are computed as [keys, queries]: then no product has to transpose them, which costs as much as the product on CPUs.

Source: Dao et al., FlashAttention, 2022 (arXiv 2205.14135), algorithms 1 and 4; Dao, FlashAttention-2, 2023, for the order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_transpose = tf.linalg.matrix_transpose
SIZE = 256
"""Tokens of a block, by measurement: 128, 384 and 512 take 1.2 to 1.3 times the CPU time in the graph."""


def attend(causal: bool, q: Any, k: Any, v: Any, mask: Any = None) -> tuple[tf.Tensor, ...]:
    """Return `softmax(q k') v`, the largest score of each query, and the sum of `exp(score - largest)`.

    Args:
        causal: whether a query sees only keys up to its own position.
        q: [batch, queries, heads, group, extent], scaled; a group of queries has one head of keys.
        k: [batch, keys, heads, extent].
        v: [batch, keys, heads, extent of values].
        mask: None, or [batch or 1, heads or 1, group or 1, queries or 1, keys or 1], bool: which keys a query sees.

    Returns:
        [batch, queries, heads, group, extent of values] in the dtype of `q`, and twice [batch, queries, heads, group] in
        float32, or float64 for float64.
    """
    grid = _Grid(causal, q, k, mask)
    qs, ks, vs = grid.split(q), grid.split(k, keys=True), _transpose(grid.split(v, keys=True))
    statistic = tf.zeros_like(qs[..., :1], grid.dtype)
    empty = tf.zeros(tf.concat([tf.shape(qs)[:-1], [v.shape[-1]]], 0), q.dtype)

    def of_queries(i: Any, made: Any, tops: Any, totals: Any) -> Sequence[Any]:
        def of_keys(j: Any, masks: bool, top: Any, total: Any, out: Any) -> Sequence[Any]:
            scores = grid.scores(qs[i], ks[j], i, j, masks)
            new = tf.maximum(top, tf.reduce_max(scores, -2, keepdims=True))
            p, before = tf.exp(scores - new), tf.exp(top - new)
            part = tf.cast(tf.matmul(vs[j], tf.cast(p, v.dtype)), grid.dtype)
            return new, total * before + tf.reduce_sum(p, -2, keepdims=True), out * before + part

        low = _transpose(tf.fill(tf.shape(statistic)[1:], grid.dtype.min))
        zero = _transpose(tf.zeros_like(empty[0], grid.dtype))
        top, total, out = grid.visit_keys(i, of_keys, (low, tf.zeros_like(low), zero))
        found = zip((made, tops, totals), map(_transpose, (out / total, top, total)))
        return [all_.write(i, tf.cast(one, all_.dtype)) for all_, one in found]

    made, *rest = (grid.join(x, q) for x in _write_blocks(grid, of_queries, empty, statistic, statistic))
    return made, *(tf.squeeze(each, -1) for each in rest)


def differentiate(causal: bool, q: Any, k: Any, v: Any, *others: Any) -> tuple[tf.Tensor, ...]:
    """Return the gradients of `q`, `k` and `v`, as for `attend`.

    The `others` are its mask, if any, its three results, and the gradient of the first one.
    """
    *mask, out, tops, totals, given = others
    grid = _Grid(causal, q, k, *mask)
    given = tf.cast(given, grid.dtype) / totals[..., None]  # instead of each score
    inside = tf.reduce_sum(given * tf.cast(out, grid.dtype), -1, keepdims=True)
    qs, ks, vs = grid.split(q), grid.split(k, keys=True), grid.split(v, keys=True)
    gs, ds, ms = (grid.split(each) for each in (tf.cast(given, q.dtype), inside, tops[..., None]))
    ds, ms, across = _transpose(ds), _transpose(ms), _transpose(ks)

    def of_queries(i: Any, dqs: Any, dks: Any, dvs: Any) -> Sequence[Any]:
        def of_keys(j: Any, masks: bool, dq: Any, dks: Any, dvs: Any) -> Sequence[Any]:
            p = tf.exp(grid.scores(qs[i], ks[j], i, j, masks) - ms[i])
            dscores = p * (tf.cast(tf.matmul(vs[j], gs[i], transpose_b=True), grid.dtype) - ds[i])
            if mask:  # a query that sees no key has equal scores, which do not depend on it
                dscores = grid.hide_unseen(i, j, dscores, 0.0)
            dscores = tf.cast(dscores, q.dtype)
            dv = tf.cast(tf.matmul(tf.cast(p, q.dtype), gs[i]), grid.dtype)
            dk = tf.cast(tf.matmul(dscores, qs[i]), grid.dtype)
            dks, dvs = dks.write(j, dks.read(j) + dk), dvs.write(j, dvs.read(j) + dv)
            return dq + tf.cast(tf.matmul(across[j], dscores), grid.dtype), dks, dvs

        dq, dks, dvs = grid.visit_keys(i, of_keys, (_transpose(tf.zeros_like(qs[i], grid.dtype)), dks, dvs))
        return dqs.write(i, tf.cast(_transpose(dq), q.dtype)), dks, dvs

    sums = (tf.zeros_like(each, grid.dtype) for each in (ks, vs))
    found = zip((q, k, v), _write_blocks(grid, of_queries, tf.zeros_like(qs), *sums))
    return tuple(tf.cast(grid.join(each, like), like.dtype) for like, each in found)


def _write_blocks(grid: Any, of_queries: Any, *state: Any) -> list[tf.Tensor]:
    """Visit all queries with arrays of blocks: writing one of them copies no other, unlike in a tensor."""
    arrays = [tf.TensorArray(x.dtype, x.shape[0], False, False).unstack(x) for x in state]
    return [array.stack() for array in _repeat(0, grid.query_blocks, of_queries, arrays)]


def _repeat(start: Any, stop: Any, body: Callable[..., Sequence[Any]], state: Sequence[Any]) -> Sequence[Any]:
    """Return the state after `state = body(number, *state)` for the numbers from `start` to before `stop`."""
    return tf.while_loop(
        lambda number, *_: number < stop,
        lambda number, *held: (number + 1, *body(number, *held)),
        (tf.convert_to_tensor(start), *state),
        parallel_iterations=1,  # several blocks at a time would take their memory together
    )[1:]


class _Grid:
    """The blocks of queries and of keys, and what the queries of one see of the keys of another."""

    def __init__(self, causal: bool, q: Any, k: Any, mask: Any = None) -> None:
        self._causal, self._keys = causal, k.shape[1]
        self._height, self._width = min(SIZE, q.shape[1]), min(SIZE, k.shape[1])
        self.query_blocks, self._key_blocks = -(-q.shape[1] // self._height), -(-k.shape[1] // self._width)
        self._is_padded = self._key_blocks * self._width > self._keys
        self._mask = None if mask is None else self._split_mask(mask)
        self.dtype = tf.float64 if q.dtype == tf.float64 else tf.float32

    def split(self, x: Any, keys: bool = False) -> tf.Tensor:
        """Split [batch, tokens, heads, group, extent] into [blocks, batch, heads, group * tokens, extent].

        Without a group for `keys`. Zeros follow the last token.
        """
        size, count = (self._width, self._key_blocks) if keys else (self._height, self.query_blocks)
        x = x[:, :, :, None] if keys else x
        x = _pad(x, 1, size * count)
        batch, _, heads, group, _ = tf.unstack(tf.shape(x))
        extent = x.shape[4]
        x = tf.reshape(x, [batch, count, size, heads, group, extent])
        return tf.reshape(tf.transpose(x, [1, 0, 3, 4, 2, 5]), [count, batch, heads, group * size, extent])

    def join(self, blocks: Any, like: Any) -> tf.Tensor:
        """Undo `split`; `like` has the group and the tokens."""
        is_keys = like.shape.rank == 4
        size = self._width if is_keys else self._height
        count, batch, heads, _, _ = tf.unstack(tf.shape(blocks))
        extent = blocks.shape[4]
        x = tf.transpose(tf.reshape(blocks, [count, batch, heads, -1, size, extent]), [1, 0, 4, 2, 3, 5])
        x = tf.reshape(x, [batch, count * size, heads, -1, extent])[:, : like.shape[1]]
        return tf.squeeze(x, 3) if is_keys else x

    def visit_keys(
        self, i: Any, of_keys: Callable[..., Sequence[Any]], state: Sequence[Any]
    ) -> Sequence[Any]:
        """Return the state after `of_keys(j, masks, *state)` for each block of keys that the queries of block `i` see.

        `masks` is false for the first ones, all keys of which all of these queries see.
        """
        whole, seen = self._key_blocks - self._is_padded, self._key_blocks
        if self._mask is not None:  # which may hide all keys from a query: then it sees each of them equally
            whole = 0
        elif self._causal:
            whole = tf.minimum((i * self._height + 1) // self._width, whole)
            seen = tf.minimum(((i + 1) * self._height - 1) // self._width + 1, seen)
        if self._mask is None:
            state = _repeat(0, whole, lambda j, *held: of_keys(j, False, *held), state)
        if self._mask is None and not self._causal and not self._is_padded:
            return state
        return _repeat(whole, seen, lambda j, *held: of_keys(j, True, *held), state)

    def scores(self, q: Any, k: Any, i: Any, j: Any, masks: bool) -> tf.Tensor:
        """Return the scores of two blocks, [batch, heads, keys, group * queries], masked where this is asked for."""
        scores = tf.cast(tf.matmul(k, q, transpose_b=True), self.dtype)
        if not masks:
            return scores
        scores = self.hide_unseen(i, j, scores, 0.7 * self.dtype.min)  # the number that Keras uses
        if self._is_padded:
            is_key = j * self._width + tf.range(self._width) < self._keys
            scores = tf.where(is_key[:, None], scores, tf.constant(-float("inf"), self.dtype))
        return scores

    def hide_unseen(self, i: Any, j: Any, scores: Any, hidden: float) -> tf.Tensor:
        """Return the scores of keys that a query sees, and `hidden` for the others."""
        seen = None
        if self._causal:
            queries, keys = i * self._height + tf.range(self._height), j * self._width + tf.range(self._width)
            seen = queries >= keys[:, None, None]
        if self._mask is not None:
            along = self._mask[tf.minimum(i, self._mask.shape[0] - 1)]
            part = along[tf.minimum(j, along.shape[0] - 1)]
            seen = part if seen is None else tf.logical_and(part, seen)
        if seen is None:
            return scores
        shape = tf.shape(scores)
        apart = tf.reshape(scores, [shape[0], shape[1], self._width, -1, self._height])
        return tf.reshape(tf.where(seen, apart, tf.cast(hidden, scores.dtype)), shape)

    def _split_mask(self, mask: Any) -> tf.Tensor:
        """Split a mask into [blocks of queries or 1, of keys or 1, batch, heads, keys or 1, group, queries or 1]."""
        shape = mask.shape
        (down, height), (along, width) = (
            (1, 1) if extent == 1 and size > 1 else (count, size)
            for extent, count, size in zip(
                shape[3:], (self.query_blocks, self._key_blocks), (self._height, self._width)
            )
        )
        mask = _pad(_pad(mask, 3, down * height), 4, along * width)
        batch, heads, group, _, _ = tf.unstack(tf.shape(mask))
        mask = tf.reshape(mask, [batch, heads, group, down, height, along, width])
        return tf.transpose(mask, [3, 5, 0, 1, 6, 2, 4])


def _pad(x: Any, axis: int, extent: int) -> tf.Tensor:
    """Append zeros along an axis up to an extent."""
    more = extent - x.shape[axis]
    return tf.pad(x, [[0, more * (number == axis)] for number in range(x.shape.rank)]) if more else x
