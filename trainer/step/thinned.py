"""A batch of which parts are zeros, as if it were padded: what a mask in it leaves out need not be seen in the first one.

A masked mean, `sum(loss * mask) / sum(mask)`, is a mean over the rows while each row has as many valid entries.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def thinned(batch: Any) -> Any:
    """The batch with zeros at one end of some rows, of other lengths; a row that has a single number loses it.

    Dense numbers and booleans alone; the rest stays as it is. Context: eager.
    """
    return tf.nest.map_structure(_thinned, batch)


def _thinned(leaf: Any) -> Any:
    if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank or leaf.dtype == tf.string:
        return leaf
    rows, *sizes = leaf.shape
    width = sizes[0] if sizes else 1
    row = tf.range(rows)
    short = (row * 5 + 2) % 7 < 2 + 4 * row // rows  # more of them among the last rows than among the first
    length = tf.maximum(width * (1 + row % 3) // 4, int(width > 1))
    length = tf.where(short, length, width)
    place = tf.range(width)[None]
    stays = tf.where((row % 2 == 1)[:, None], place >= width - length[:, None], place < length[:, None])
    stays = tf.reshape(stays, [rows, width, *[1] * (len(sizes) - 1)] if sizes else [rows])
    return tf.where(stays, leaf, tf.zeros([], leaf.dtype))
