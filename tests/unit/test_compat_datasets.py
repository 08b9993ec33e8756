"""The private parts of TensorFlow that the input sources use are unchanged."""

import threading
import time

import pytest
import tensorflow as tf

from unisono.compat.tensorflow_private import tf_data
from unisono.compat.tensorflow_private.tf_data import (
    LIVE_SHUFFLE,
    _wait_for_ends,
    count_shuffles,
    end_iterator,
)
from unisono.trainer.inputs.sources.dataset_source import DatasetSource, Elements
from unisono.trainer.inputs.sources.iterator_checkpoint import save_iterator


def test_shuffles_of_a_pipeline_are_found():
    plain = tf.data.Dataset.range(8).batch(2)
    mixed = tf.data.Dataset.zip((plain.shuffle(3), plain)).map(lambda x, y: x).with_options(tf.data.Options())
    assert count_shuffles(plain) == 0
    assert count_shuffles(mixed) == 1
    assert count_shuffles(mixed.shuffle(2).concatenate(mixed)) == 3


def test_checkpoint_of_an_iterator_tells_whether_a_shuffle_lives():
    iterator = iter(tf.data.Dataset.range(99).shuffle(8, seed=1).shuffle(2).batch(4))
    next(iterator)
    assert save_iterator(iterator).count(LIVE_SHUFFLE) == 2
    for _ in iterator:
        pass
    assert save_iterator(iterator).count(LIVE_SHUFFLE) == 0


def wait_for(condition):
    while not condition():
        time.sleep(0.01)


def test_iterator_is_empty_once_it_was_ended():
    dataset = tf.data.Dataset.range(9).batch(2).prefetch(tf.data.AUTOTUNE)
    iterator = iter(dataset)
    next(iterator)
    ending = set(tf_data._ending)
    end_iterator(iterator, dataset)
    wait_for(lambda: tf_data._ending <= ending)
    with pytest.raises(StopIteration):
        next(iterator)


def test_epochs_do_not_wait_for_the_end_of_the_last_pass():
    may_end, ended = threading.Event(), []

    def numbers():
        try:
            yield from range(100)
        finally:
            ended.append(may_end.wait())

    dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int32))
    source = DatasetSource(Elements(dataset.batch(2)), None)
    for epoch in range(3):
        source.begin_epoch(epoch)
        source.take(1)
        next(source._iterator)
    source.close()
    assert not ended
    may_end.set()
    wait_for(lambda: len(ended) == 3)


def test_program_waits_for_ends_with_a_bound(monkeypatch, caplog):
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait)
    thread.start()
    monkeypatch.setattr(tf_data, "_ending", {thread})
    monkeypatch.setattr(tf_data, "_PATIENCE", 0.01)
    _wait_for_ends()
    assert "1 input pipelines still ran" in caplog.text
    may_end.set()
    thread.join()


def test_distributed_iterator_is_left_alone():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))
    iterator = iter(dataset)
    end_iterator(iterator, dataset)
    assert next(iterator).numpy().tolist() == [0, 1]


def test_ended_iterators_leave_the_order_of_the_next_pass():
    dataset = tf.data.Dataset.range(20).shuffle(20, seed=3).batch(4)
    right = [[batch.numpy().tolist() for batch in dataset] for _ in range(3)]
    dataset = tf.data.Dataset.range(20).shuffle(20, seed=3).batch(4)
    source, found = DatasetSource(Elements(dataset), None), []
    for epoch in range(3):
        source.begin_epoch(epoch)
        found.append([batch.numpy().tolist() for batch in source._iterator])
        source.position.ended = True
    assert found == right
