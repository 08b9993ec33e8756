"""Hashes of batches, by which workers compare what they read."""

from typing import Any

import tensorflow as tf

_MOST_HASHES = 1 << 20  # of a batch; with more samples they count as one


def digest_of(batch: Any) -> tf.Tensor:
    """Hash every tensor of a batch, except variants, on the host, in a graph or eager.

    int64 `(tensors, 2)`: the hash, and 0 where all samples of a tensor are the same, such as targets of 1, else 1.
    """
    with tf.device("CPU:0"):
        hashes = [
            _hash_samples(tf.convert_to_tensor(leaf))
            for leaf in tf.nest.flatten(batch, expand_composites=True)
            if leaf is not None and leaf.dtype not in (tf.variant, tf.resource)
        ]
        return tf.concat([tf.zeros([0, 2], tf.int64), *hashes], 0)


def _hash_samples(leaf: tf.Tensor) -> tf.Tensor:
    samples = tf.shape(leaf)[0] if leaf.shape.rank else 1
    parts = tf.where(samples > _MOST_HASHES, 1, tf.maximum(samples, 1))
    each = _fingerprint(tf.reshape(leaf, tf.stack([parts, -1])))
    differ = tf.logical_or(parts == 1, tf.reduce_any(each != each[0]))
    return tf.stack([_fingerprint(each[None]), tf.cast(differ, tf.int64)[None]], 1)


def _fingerprint(rows: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.raw_ops.Fingerprint(data=rows, method="farmhash64"), tf.int64)  # about 6 GB/s
