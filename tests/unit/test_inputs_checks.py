"""Unusable inputs are rejected before the first step; later errors are the user's own, with their location."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import source_of

from unisono.compat.keras_private import functional
from unisono.trainer.inputs import GivenData

X, Y = np.zeros((6, 3), "float32"), np.arange(6) % 2


def dataset(*arrays, batch=2):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch)


def test_dataset_that_turns_out_empty_is_rejected():
    source = source_of(dataset(X).filter(lambda x: False))
    source.begin_epoch(0)
    chunk = source.take(3)
    assert chunk.batch(0) is None
    with pytest.raises(ValueError, match="yielded no batch"):
        source.note_drawn(0)


def chunks_of(source):
    """The chunks of one epoch."""
    source.begin_epoch(0)
    while (chunk := source.take(4)) is not None:
        yield chunk


def count_steps(source):
    return sum(chunk.steps for chunk in chunks_of(source))


class UsersOwnError(Exception):
    pass


def failing_generator():
    for _ in range(5):
        yield (X, Y)
    raise UsersOwnError("disk on fire")


class FailingDataset(keras.utils.PyDataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index == 5:
            raise UsersOwnError("disk on fire")
        return X, Y


def changing(**change):
    last = {"x": X, "y": Y, **change}
    return iter([(X, Y)] * 5 + [(last["x"], last["y"])])


WRONG_LATER = {
    "generator": (failing_generator, UsersOwnError, "disk on fire"),
    "PyDataset": (FailingDataset, UsersOwnError, "disk on fire"),
    "PyDataset with threads": (lambda: FailingDataset(workers=3), UsersOwnError, "disk on fire"),
    "dtype": (lambda: changing(x=X.astype(float)), ValueError, r"x of batch 5 of the generator .*float64"),
    "shape": (lambda: changing(x=X[:, :2]), ValueError, r"x of batch 5 of the generator .*2\)"),
    "rank": (lambda: changing(y=X), ValueError, r"y of batch 5 of the generator"),
    "structure": (
        lambda: iter([(X, Y)] * 5 + [({"a": X}, Y)]),
        ValueError,
        r"Batch 5 .* differs in structure",
    ),
    "no batch": (lambda: iter([(X, Y)] * 5 + ["text"]), ValueError, r"Batch 5 of the generator is a str"),
    "rows": (lambda: changing(y=Y[:3]), ValueError, r"Batch 5 of the generator: .*x: 6, y: 3"),
}


@pytest.mark.parametrize("case", WRONG_LATER)
def test_error_in_the_middle_comes_after_the_good_batches_with_its_number(case):
    make, error, message = WRONG_LATER[case]
    source, steps = source_of(make()), 0
    with pytest.raises(error, match=message) as caught:
        for chunk in chunks_of(source):
            steps += chunk.steps
    assert steps == 5
    if error is UsersOwnError:
        assert "batch 5" in caught.value.__notes__[0]
    source.close()


def test_generator_that_ends_early_warns_as_keras_does():
    source = source_of(iter([(X, Y)] * 3), steps_per_epoch=5)
    with pytest.warns(UserWarning, match="ran out of data"):
        assert count_steps(source) == 3


def test_shuffle_of_a_dataset_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="`shuffle=batch` was passed, but will be ignored"):
        source_of(dataset(X), shuffle="batch")
    source_of(dataset(X), shuffle=True)  # the default of `fit`, so it does not warn


def test_generator_of_many_batch_sizes_is_read_with_few_readers():
    sizes = [1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1]
    source = source_of((X[:size], Y[:size]) for size in sizes)
    readers, rows = set(), []
    for chunk in chunks_of(source):
        readers.add(chunk.reader)
        rows += [int(tf.shape(chunk.batch(i)[1])[0]) for i in range(chunk.steps)]
    assert rows == sizes
    assert len(readers) <= 4


def test_generator_may_vary_a_dimension_in_which_its_first_batches_differ():
    source = source_of((np.zeros((2, length)),) for length in (3, 5, 4, 9))
    assert source.spec[0].shape.as_list() == [None, None]
    assert count_steps(source) == 4


def test_split_takes_the_last_samples_and_rejects_what_has_none():
    training, (vx, vy, vw) = GivenData(X, {"a": Y}).split(0.34)
    assert (len(training.x), len(vx)) == (3, 3)
    np.testing.assert_array_equal(np.concatenate([training.y["a"], vy["a"]]), Y)
    assert training.sample_weight is None and vw is None
    for share in (1.5, -0.1, "0.2"):
        with pytest.raises(ValueError, match="validation_split"):
            GivenData(X).split(share)
    with pytest.raises(ValueError, match="leaves 0 for training"):
        GivenData(X).split(0.99)
    for stream in (dataset(X), iter([(X,)]), FailingDataset()):
        with pytest.raises(ValueError, match="pass validation_data"):
            GivenData(stream).split(0.5)


def test_class_weights_are_those_of_keras():
    targets = {
        "numbers": Y,
        "column": Y[:, None].astype("float32"),
        "one-hot": np.eye(2, dtype="float32")[Y],
        "others weigh one": np.array([0, 1, 7, 7, -1, 1]),
    }
    weight = {0: 2.0, 1: 0.5, -1: 4.0}
    expected = np.where(Y == 0, 2.0, 0.5)
    for name, y in targets.items():
        source = source_of(X, y, batch_size=4, class_weight=weight)
        found = [chunk.batch(i)[2] for chunk in chunks_of(source) for i in range(chunk.steps)]
        right = [2.0, 0.5, 1.0, 1.0, 4.0, 0.5] if name == "others weigh one" else expected
        np.testing.assert_array_equal(np.concatenate(found), np.float32(right))


def test_error_that_keras_replaced_is_found():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    try:
        model(np.ones((2, 4)))
    except ValueError as error:
        first = functional.first_error(error)
        assert "Arguments received by" in str(error) and "Arguments received by" not in str(first)
        assert "incompatible with the layer" in str(first)
        assert functional.find_rejected_shapes(error) == [[4]]
    else:
        raise AssertionError("Keras took an input of another shape")
    plain = TypeError("plain")
    assert functional.first_error(plain) is plain and functional.find_rejected_shapes(plain) == []


def test_lists_of_numbers_in_a_batch_of_python_code_are_one_array_each():
    source = source_of(iter([([[1.0, 2.0], [3.0, 4.0]], [0, 1])] * 2))
    batch = next(chunks_of(source)).batch(0)
    assert [part.shape.as_list() for part in batch] == [[2, 2], [2]]
    source.close()
