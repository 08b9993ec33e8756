"""What is private in TensorFlow and used by the sources is still as it was."""

import tensorflow as tf
from unisono.trainer.sources.datasets import _save_iterator
from unisono.trainer.sources.tensorflow_internals import LIVE_SHUFFLE, count_shuffles


def test_shuffles_of_a_pipeline_are_found():
    plain = tf.data.Dataset.range(8).batch(2)
    mixed = tf.data.Dataset.zip((plain.shuffle(3), plain)).map(lambda x, y: x).with_options(tf.data.Options())
    assert count_shuffles(plain) == 0
    assert count_shuffles(mixed) == 1
    assert count_shuffles(mixed.shuffle(2).concatenate(mixed)) == 3


def test_checkpoint_of_an_iterator_tells_whether_a_shuffle_lives():
    iterator = iter(tf.data.Dataset.range(99).shuffle(8, seed=1).shuffle(2).batch(4))
    next(iterator)
    assert _save_iterator(iterator).count(LIVE_SHUFFLE) == 2
    for _ in iterator:
        pass
    assert _save_iterator(iterator).count(LIVE_SHUFFLE) == 0
