"""Unusable inputs are rejected before the first step; later errors are the user's own, with their location."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono.trainer.inputs import make_source, split_for_validation

X, Y = np.zeros((6, 3), "float32"), np.arange(6) % 2
TWO = {"a": Y, "b": Y}


def dataset(*arrays, batch=2):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch)


class Empty(keras.utils.PyDataset):
    num_batches = 0

    def __getitem__(self, index):
        raise AssertionError


REFUSED = {
    "other lengths": (dict(x=X, y=Y[:5]), ValueError, r"x: 6, y: 5"),
    "other lengths in a structure": (
        dict(x={"p": X, "q": [X[:4]]}),
        ValueError,
        r"x\['p'\]: 6, x\['q'\]\[0\]: 4",
    ),
    "no samples": (dict(x=X[:0]), ValueError, r"no samples \(x: 0\)"),
    "a scalar": (dict(x=np.float32(3)), ValueError, r"is a scalar"),
    "nothing": (dict(x=None), ValueError, r"x is None"),
    "an object": (dict(x=object()), TypeError, r"x is a object"),
    "an object in a structure": (dict(x=[X, object()]), TypeError, r"x\[1\] is a object"),
    "dtype object": (dict(x=np.array([1, [2, 3]], object)), TypeError, r"holds int, list"),
    "dates": (dict(x=np.zeros(3, "datetime64[s]")), TypeError, r"datetime64"),
    "batch_size 0": (dict(x=X, batch_size=0), ValueError, r"`batch_size` .* at least 1.*: 0"),
    "batch_size -1": (dict(x=X, batch_size=-1), ValueError, r"`batch_size` .*: -1"),
    "batch_size 2.0": (dict(x=X, batch_size=2.0), ValueError, r"`batch_size` .*: 2.0"),
    "batch_size NaN": (dict(x=X, batch_size=float("nan")), ValueError, r"`batch_size` .*: nan"),
    "batch_size True": (dict(x=X, batch_size=True), ValueError, r"`batch_size` .*: True"),
    "steps_per_epoch 0": (dict(x=X, steps_per_epoch=0), ValueError, r"`steps_per_epoch` .*: 0"),
    "steps_per_epoch '3'": (dict(x=X, steps_per_epoch="3"), ValueError, r"`steps_per_epoch` .*: '3'"),
    "shuffle": (dict(x=X, shuffle="samples"), ValueError, r"`shuffle`.*Received: 'samples'"),
    "weights of one of two": (dict(x=X, y=TWO, sample_weight={"a": Y}), ValueError, r"each output of y"),
    "weights with dimensions": (dict(x=X, y=TWO, sample_weight=X), ValueError, r"shape \(6, 3\)"),
    "class_weight without y": (dict(x=X, class_weight={0: 2.0}), ValueError, r"give y"),
    "class_weight of two": (dict(x=X, y=TWO, class_weight={0: 2.0}), ValueError, r"one output"),
    "class_weight of four": (dict(x=dataset(X, Y, Y, Y), class_weight={0: 2.0}), ValueError, r"tuple of 4"),
    "class_weight and weights": (
        dict(x=X, y=Y, sample_weight=Y, class_weight={0: 2.0}),
        ValueError,
        r"class_weight .* and sample_weight are both given",
    ),
    "class_weight of names": (dict(x=X, y=Y, class_weight={"cat": 2.0}), TypeError, r"the key 'cat'"),
    "class_weight of text": (dict(x=X, y=Y, class_weight={0: "2"}), ValueError, r"class_weight\[0\].*'2'"),
    "class_weight NaN": (dict(x=X, y=Y, class_weight={0: np.nan}), ValueError, r"class_weight\[0\].* nan"),
    "class_weight list": (dict(x=X, y=Y, class_weight=[1.0]), TypeError, r"must be a dict"),
    "class_weight of strings": (
        dict(x=X, y=np.array(list("ababab")), class_weight={0: 2.0}),
        ValueError,
        r"strings",
    ),
    "dataset with y": (dict(x=dataset(X), y=Y), ValueError, r"y \(ndarray\) must not be given"),
    "dataset with weights": (
        dict(x=dataset(X, Y), sample_weight=Y),
        ValueError,
        r"sample_weight \(ndarray\)",
    ),
    "dataset with batch_size": (dict(x=dataset(X), batch_size=2), ValueError, r"batch_size \(2\) must not"),
    "dataset with weights and class_weight": (
        dict(x=dataset(X, Y, Y), class_weight={0: 2.0}),
        ValueError,
        r"both given",
    ),
    "dataset of samples": (dict(x=tf.data.Dataset.from_tensor_slices((X, Y))), ValueError, r"batch it first"),
    "dataset of samples, one-hot": (
        dict(x=tf.data.Dataset.from_tensor_slices((X, np.zeros((6, 10))))),
        ValueError,
        r"different numbers of samples \(\[3, 10\]",
    ),
    "empty dataset": (dict(x=dataset(X).take(0)), ValueError, r"without any batch"),
    "endless dataset": (dict(x=dataset(X).repeat()), ValueError, r"steps_per_epoch \(None\) must be given"),
    "generator with y": (dict(x=iter([(X,)]), y=Y), ValueError, r"y \(ndarray\) must not be given"),
    "empty generator": (dict(x=iter([])), ValueError, r"yielded no batch"),
    "generator of numbers": (dict(x=iter([1, 2])), ValueError, r"Batch 0 of the generator is a int"),
    "generator of unequal batches": (dict(x=iter([(X, Y[:2])])), ValueError, r"Batch 0 .*x: 6, y: 2"),
    "generator that changes": (dict(x=iter([(X,), (X, Y)])), ValueError, r"Batch 1 of the generator"),
    "empty PyDataset": (dict(x=Empty()), ValueError, r"has 0 batches"),
    "function without a dataset": (dict(x=lambda context: X), TypeError, r"returned a ndarray"),
    "generator function": (
        dict(x=lambda: iter([(X,)])),
        TypeError,
        r"function without arguments.*call it and pass the generator",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_input_that_cannot_work_is_rejected_with_the_value(case):
    arguments, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        make_source(**arguments)


def test_dataset_that_turns_out_empty_is_rejected():
    source = make_source(dataset(X).filter(lambda x: False))
    source.begin_epoch(0)
    chunk = source.take(3)
    assert chunk.batch(0) is None
    with pytest.raises(ValueError, match="gave no batch"):
        source.drawn(0)


def count_steps(source):
    source.begin_epoch(0)
    steps = 0
    while (chunk := source.take(4)) is not None:
        steps += chunk.steps
    return steps


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
    "dtype": (
        lambda: changing(x=X.astype("float64")),
        ValueError,
        r"x of batch 5 of the generator .*float64",
    ),
    "shape": (lambda: changing(x=X[:, :2]), ValueError, r"x of batch 5 of the generator .*2\)"),
    "rank": (lambda: changing(y=X), ValueError, r"y of batch 5 of the generator"),
    "structure": (lambda: iter([(X, Y)] * 5 + [({"a": X}, Y)]), ValueError, r"Batch 5 .* another structure"),
    "no batch": (lambda: iter([(X, Y)] * 5 + ["text"]), ValueError, r"Batch 5 of the generator is a str"),
    "rows": (lambda: changing(y=Y[:3]), ValueError, r"Batch 5 of the generator: .*x: 6, y: 3"),
}


@pytest.mark.parametrize("case", WRONG_LATER)
def test_error_in_the_middle_comes_after_the_good_batches_with_its_number(case):
    make, error, message = WRONG_LATER[case]
    source = make_source(make())
    source.begin_epoch(0)
    steps = 0
    with pytest.raises(error, match=message) as caught:
        while (chunk := source.take(4)) is not None:
            steps += chunk.steps
    assert steps == 5
    if error is UsersOwnError:
        assert "batch 5" in caught.value.__notes__[0]
    source.close()


def test_generator_that_ends_early_warns_as_keras_does():
    source = make_source(iter([(X, Y)] * 3), steps_per_epoch=5)
    with pytest.warns(UserWarning, match="ran out of data"):
        assert count_steps(source) == 3


def test_shuffle_of_a_dataset_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="`shuffle=batch` was passed, but will be ignored"):
        make_source(dataset(X), shuffle="batch")
    make_source(dataset(X), shuffle=True)  # the default of `fit`, so it does not warn


def test_generator_of_many_batch_sizes_is_read_with_few_readers():
    sizes = [1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1]
    source = make_source((X[:size], Y[:size]) for size in sizes)
    source.begin_epoch(0)
    readers, rows = set(), []
    while (chunk := source.take(3)) is not None:
        readers.add(chunk.reader)
        for i in range(chunk.steps):
            rows.append(int(tf.shape(chunk.batch(i)[1])[0]))
    assert rows == sizes
    assert len(readers) <= 4


def test_generator_may_vary_a_dimension_in_which_its_first_batches_differ():
    source = make_source((np.zeros((2, length)),) for length in (3, 5, 4, 9))
    assert source.spec[0].shape.as_list() == [None, None]
    assert count_steps(source) == 4


def test_split_takes_the_last_samples_and_rejects_what_has_none():
    (x, y, w), (vx, vy, vw) = split_for_validation(X, {"a": Y}, None, validation_split=0.34)
    assert (len(x), len(vx)) == (3, 3)
    np.testing.assert_array_equal(np.concatenate([y["a"], vy["a"]]), Y)
    assert w is None and vw is None
    for share in (1.5, -0.1, "0.2"):
        with pytest.raises(ValueError, match="validation_split"):
            split_for_validation(X, validation_split=share)
    with pytest.raises(ValueError, match="leaves 0 for training"):
        split_for_validation(X, validation_split=0.99)
    for stream in (dataset(X), iter([(X,)]), FailingDataset()):
        with pytest.raises(ValueError, match="give validation_data"):
            split_for_validation(stream, validation_split=0.5)


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
        source = make_source(X, y, batch_size=4, class_weight=weight)
        source.begin_epoch(0)
        found = []
        while (chunk := source.take(2)) is not None:
            found += [chunk.batch(i)[2] for i in range(chunk.steps)]
        right = [2.0, 0.5, 1.0, 1.0, 4.0, 0.5] if name == "others weigh one" else expected
        np.testing.assert_array_equal(np.concatenate(found), np.float32(right))
