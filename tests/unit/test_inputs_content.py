"""What tells one input from another: the same for the same data made again, another for any other."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono.trainer.inputs import content, make_source


def arrays(change=None):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 3)).astype("float32")
    if change is not None:
        values[change] += 1
    return values


def identity(*arguments, **named):
    source = make_source(*arguments, **{"batch_size": 4, **named})
    try:
        return source.identity()
    finally:
        source.close()


def test_arrays_are_known_by_every_byte(monkeypatch):
    x = arrays()
    known = identity(x, x[:, 0])
    assert known == identity(x.copy(), x[:, 0].copy())
    others = [
        identity(arrays((17, 1)), x[:, 0]),
        identity(x, x[:, 1]),
        identity(x, x[:, 0], x[:, 0]),
        identity(x.astype("int32"), x[:, 0]),
        identity({"a": x}, x[:, 0]),
        identity(x.reshape(40, 3, 1), x[:, 0]),
        identity(x, x[:, 0], shuffle=True),
        identity(x, x[:, 0].astype("int32"), class_weight={0: 2.0}),
        identity(tf.ragged.constant([[1.0]] * 39 + [[]]), x[:, 0]),
    ]
    assert len({str(each) for each in [known, *others]}) == 1 + len(others)
    assert identity(x, x[:, 0], resident_bytes=0)["content"] == known["content"]
    monkeypatch.setattr(content, "MOST_BYTES", 64 * 24)  # two rows of each of 64 blocks
    x = np.zeros((4000, 3), "float32")
    known = content.checksum(x)
    for row in (0, 1, 3998, 3999):
        x[row] = 1
        assert content.checksum(x) != known
        x[row] = 0


def test_texts_and_objects_are_told_apart():
    texts = [np.array(value) for value in (["ab", "c"], ["a", "bc"], [b"a", b"bc"])]
    sums = [content.checksum(tf.constant(text)) for text in texts]
    assert sums[0] != sums[1] == sums[2] and None not in sums
    assert content.checksum([1.0, "text", None]) != content.checksum([2.0, "text", None])
    assert content.checksum(object()) != content.checksum(None)


class Items(keras.utils.PyDataset):
    def __init__(self, draw=lambda index: index):
        super().__init__()
        self.draw = draw

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.full((2, 2), self.draw(index), "float32"), np.zeros((2, 1))


def test_batches_made_by_python_are_known_unless_they_are_random():
    known = identity(Items(), batch_size=None)
    assert known["content"] is not None and known == identity(Items(), batch_size=None)
    assert identity(Items(lambda index: index + 1), batch_size=None)["content"] != known["content"]
    for draw in (lambda _: np.random.rand(), lambda _: random.random()):
        assert identity(Items(draw), batch_size=None)["content"] is None
    batches = [(np.ones((2, 2)), np.ones((2, 1)))] * 3
    assert identity(iter(batches), batch_size=None)["content"] is None


def pipeline(x, factor=2, seed=None):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [3]), -1)
    dataset = tf.data.Dataset.from_tensor_slices(x).shuffle(8, seed=seed)
    return dataset.map(lambda row: row * factor + tf.cast(table.lookup(tf.constant(1)), tf.float32)).batch(4)


def test_pipeline_is_known_by_its_data_and_its_functions_and_nothing_is_drawn():
    x = arrays()
    known = identity(pipeline(x), batch_size=None)
    assert known["pipeline"] is not None and known == identity(pipeline(x, seed=7), batch_size=None)
    for other in (pipeline(arrays((39, 2))), pipeline(x, 3), pipeline(x).take(3)):
        assert identity(other, batch_size=None) != known


@pytest.mark.parametrize("kind", ["generator", "numpy_function", "function"])
def test_pipeline_without_a_graph_of_its_own_is_not_known(kind):
    x, spec = arrays(), tf.TensorSpec([None, 3])
    if kind == "generator":
        given = tf.data.Dataset.from_generator(lambda: iter([x]), output_signature=spec)
    elif kind == "numpy_function":
        given = tf.data.Dataset.from_tensors(x).map(
            lambda row: tf.ensure_shape(tf.numpy_function(np.sin, [row], tf.float32), [None, 3])
        )
    else:
        given = lambda context: tf.data.Dataset.from_tensors(x)  # noqa: E731
    assert identity(given, batch_size=None)["pipeline"] is None


def rows(dataset):
    return dataset.map(lambda row: (row, row[:1])).batch(2)


def counted(**arguments):
    """A pipeline that draws from a generator of its own."""
    generator = tf.random.Generator.from_seed(3)
    dataset = tf.data.Dataset.from_tensor_slices(arrays()[:8])
    return rows(dataset.map(lambda row: row + generator.normal([]), **arguments))


def augmented():
    layer = keras.layers.GaussianNoise(0.5, seed=4)
    dataset = tf.data.Dataset.from_tensor_slices(arrays()[:8])
    return rows(dataset.map(lambda row: layer(row, training=True)))


def from_generator():
    signature = tf.TensorSpec([3])
    return rows(
        tf.data.Dataset.from_generator(lambda: iter(arrays()[:8]), output_signature=signature).shuffle(
            4, seed=2
        )
    )


def cached(cache=lambda dataset: dataset.cache()):
    return rows(cache(tf.data.Dataset.from_tensor_slices(arrays()[:8]).shuffle(8, seed=5)))


def python_function():
    dataset = tf.data.Dataset.from_tensor_slices(arrays()[:8]).shuffle(8, seed=5)
    return rows(dataset.map(lambda row: tf.ensure_shape(tf.numpy_function(np.sin, [row], tf.float32), [3])))


def batches(source, epochs, first=0, step=0):
    """All batches from a position on, and the positions before each."""
    found, positions = [], []
    for epoch in range(first, epochs):
        if epoch > first or not step:
            source.begin_epoch(epoch)
        while True:
            positions.append(source.state())
            chunk = source.take(1)
            if chunk is None:
                break
            batch = chunk.reader(chunk.inputs, tf.constant(0))
            if chunk.open_ended:
                if not batch.has_value():
                    source.drawn(0)
                    break
                batch = batch.get_value()
            found.append((epoch, np.asarray(batch[0]).tobytes()))
        positions.pop()
    return found, positions


@pytest.mark.parametrize("make", [counted, augmented, cached, from_generator, python_function])
def test_pipeline_with_state_outside_of_its_iterator_resumes_to_the_bit(make):
    """At every position of three epochs; each time in a pipeline made anew, as in another process."""
    source = make_source(make())
    assert source.inexact is None and source.resume_by == "skip"
    expected, positions = batches(source, 3)
    source.close()
    assert len(expected) == len(positions) == 12 and not any("iterator" in position for position in positions)
    for number, position in enumerate(positions):
        if number % 4 == 0 and number:
            continue  # the state before the first step of an epoch is saved at the end of the one before
        resumed = make_source(make())
        resumed.restore(position)
        found, _ = batches(resumed, 3, position["epoch"], position["step"])
        resumed.close()
        assert found == expected[number:], number


def test_pipeline_that_draws_in_parallel_is_named():
    source = make_source(counted(num_parallel_calls=2))
    assert "draws from a tf.random.Generator" in source.inexact and "num_parallel_calls" in source.inexact
    source.close()


def test_batches_that_draw_ahead_are_named():
    for x, kind in ((Items(lambda _: np.random.rand()), "PyDataset"), (Drawing(), "iterable")):
        source = make_source(x)
        assert f"x is a {kind} whose batches draw random numbers from numpy.random" in source.inexact
        source.close()
    source = make_source(Items())
    assert source.inexact is None
    source.close()


class Drawing:
    def __iter__(self):
        for _ in range(3):
            yield np.random.rand(2, 2), np.zeros((2, 1))


def test_iterator_that_cannot_be_saved_later_is_not_asked_again(monkeypatch):
    """The first look says nothing about the next moment: from the first refusal on, batches are drawn and dropped."""
    source = make_source(tf.data.Dataset.from_tensor_slices((arrays(), arrays())).batch(4))
    source.begin_epoch(0)
    assert source.resume_by == "iterator" and "iterator" in source.state()
    asked = []

    def refused(iterator):
        asked.append(iterator)
        raise tf.errors.FailedPreconditionError(None, None, "PyFunc is stateful.")

    monkeypatch.setattr("unisono.trainer.inputs.datasets.save_iterator", refused)
    assert "iterator" not in source.state() and "iterator" not in source.state()
    assert source.resume_by == "skip" and len(asked) == 1
    source.close()


def test_pipeline_that_holds_much_is_known_by_parts_of_it(monkeypatch):
    monkeypatch.setattr("unisono.compat.datasets._MOST_HELD", 100)
    known = identity(pipeline(arrays()), batch_size=None)
    assert known["pipeline"] is None
    assert known["content"] != identity(pipeline(arrays((0, 0))), batch_size=None)["content"]
