"""Samples of any structure: slicing and concatenating lose nothing, in graphs and eagerly, for every kind of tensor."""

import itertools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from helpers import source_of
from hypothesis import strategies as st

from unisono.trainer.inputs import concat_samples, sample_count, slice_samples
from unisono.trainer.inputs.batch import batch_spec, slice_units, take_samples, unit_count
from unisono.trainer.inputs.input_checks import check_equal_samples

# Timings are meaningless on a busy machine.
SETTINGS = hypothesis.settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)


class Interval(tf.experimental.ExtensionType):
    """A custom extension type."""

    low: tf.Tensor
    high: tf.RaggedTensor


def leaf(kind, rows):
    """One array of `rows` samples; sample r contains the number r."""
    numbers = np.arange(rows)
    if kind == "ragged":
        return tf.RaggedTensor.from_row_lengths(np.repeat(numbers, numbers % 3), numbers % 3)
    if kind == "sparse":
        return tf.sparse.from_dense(np.where(np.arange(4) == numbers[:, None] % 4, numbers[:, None] + 1, 0))
    if kind == "string":
        return np.array([f"sample {r}" for r in numbers])
    if kind == "bool":
        return numbers % 2 == 0
    if kind == "matrix":
        return np.arange(rows * 6).reshape(rows, 3, 2)
    return numbers.astype(kind)


KINDS = ["ragged", "sparse", "string", "bool", "matrix"]
KINDS += ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32"]


def structures():
    leaves = st.sampled_from(KINDS)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from("abc"), inner, min_size=1)
        ),
        max_leaves=5,
    )


def build(plan, rows):
    return tf.nest.map_structure(lambda kind: leaf(kind, rows), plan)


def tensors(structure):
    return tf.nest.map_structure(lambda v: tf.constant(v) if isinstance(v, np.ndarray) else v, structure)


def plain(structure):
    """The structure as nested lists of Python values."""

    def one(value):
        if isinstance(value, tf.SparseTensor):
            return tf.sparse.to_dense(value).numpy().tolist()
        if isinstance(value, tf.RaggedTensor):
            return value.to_list()
        return np.asarray(value).tolist()

    return [one(v) for v in tf.nest.flatten(structure)]


@SETTINGS
@hypothesis.given(plan=structures(), rows=st.integers(1, 13), cuts=st.lists(st.integers(0, 13), max_size=3))
def test_slices_of_any_structure_put_back_are_the_whole(plan, rows, cuts):
    whole = tensors(build(plan, rows))
    bounds = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    pieces = [slice_samples(whole, a, b) for a, b in itertools.pairwise(bounds)]
    assert [int(sample_count(piece)) for piece in pieces] == [b - a for a, b in itertools.pairwise(bounds)]
    assert plain(concat_samples(pieces)) == plain(whole)


@SETTINGS
@hypothesis.given(
    plan=structures(),
    rows=st.integers(1, 13),
    batch=st.integers(1, 15),
    shuffle=st.sampled_from([False, True, "batch"]),
    streamed=st.booleans(),
)
def test_every_sample_of_any_structure_is_read_once(plan, rows, batch, shuffle, streamed):
    data = build(plan, rows)
    limit = {"resident_bytes": 0} if streamed else {}
    source = source_of(data, np.arange(rows), batch_size=batch, shuffle=shuffle, seed=rows, **limit)
    source.begin_epoch(0)
    batches = []
    while (chunk := source.take(4)) is not None:
        batches += [chunk.batch(i) for i in range(chunk.steps)]
    source.close()
    assert [int(sample_count(b)) for b in batches] == [min(batch, rows - i) for i in range(0, rows, batch)]
    for b in batches:
        fits = tf.nest.map_structure(lambda spec, value: spec.is_compatible_with(value), source.spec, b)
        assert all(tf.nest.flatten(fits))
    joined_x, order = concat_samples(batches)
    assert sorted(order.numpy().tolist()) == list(range(rows))
    assert plain(joined_x) == plain(take_samples(tensors(data), order))


@pytest.mark.parametrize("kind", ["ragged", "sparse", "string", "matrix"])
@pytest.mark.short("matrix", "sparse", "string")
def test_slice_in_a_graph_with_unknown_bounds(kind):
    value = tensors(leaf(kind, 7))

    @tf.function(input_signature=[batch_spec(value), *[tf.TensorSpec([], tf.int32)] * 2])
    def cut(value, a, b):
        part = slice_samples(value, a, b)
        assert part.shape[1:].as_list() == value.shape[1:].as_list()
        return part, sample_count(part)

    for a, b in ((0, 7), (2, 5), (3, 3), (6, 7)):
        part, rows = cut(value, tf.constant(a), tf.constant(b))
        assert int(rows) == b - a
        assert plain(part) == plain(slice_samples(value, a, b))


def test_slice_lets_gradients_through():
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0], [4.0]])
    for value in (tf.constant([[1.0], [2.0], [3.0]]), ragged):
        flat = value.flat_values if isinstance(value, tf.RaggedTensor) else value
        with tf.GradientTape() as tape:
            tape.watch(flat)
            whole = value.with_flat_values(flat) if isinstance(value, tf.RaggedTensor) else flat
            part = slice_samples(whole, 1, 3)
            loss = tf.reduce_sum(part**2)
        kept = tf.reshape(tape.gradient(loss, flat), [-1]).numpy()
        assert kept[0] == 0 and (kept[1:] != 0).all()


def test_extension_type_is_read_by_samples():
    data = Interval(tf.range(5), tf.ragged.constant([[1], [], [3, 3], [4], [5]]))
    source = source_of(data, np.arange(5), batch_size=2, shuffle=True)
    assert source.spec[0].low.shape.as_list() == [None]
    source.begin_epoch(0)
    chunk = source.take(2)
    batch, order = chunk.batch(1)
    assert batch.low.numpy().tolist() == order.numpy().tolist()
    halves = [slice_samples(data, 0, 2), slice_samples(data, 2, 5)]
    assert [int(sample_count(half)) for half in halves] == [2, 3]
    whole = concat_samples(halves)
    assert whole.low.numpy().tolist() == [0, 1, 2, 3, 4]
    assert whole.high.to_list() == data.high.to_list()


def test_floats_become_floatx_and_the_rest_stays():
    arrays = {k: np.ones(3, k) for k in ("float16", "float64", "int8", "uint32", "bool", "complex64")}
    spec = source_of(arrays).spec
    expected = {k: "float32" if k.startswith("float") else k for k in arrays}
    assert {k: v.dtype.name for k, v in spec.items()} == expected


@pytest.mark.parametrize(
    "counts, units", [((4, 12), 4), ((12, 8, 20), 4), ((3, 7), 1), ((5, 5), 5), ((0, 6), 6)]
)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.short(but=["True-counts0-4"])
def test_parts_of_unequal_arrays_have_the_same_share_of_each(counts, units, known):
    spec = [tf.TensorSpec([count if known else None], tf.int32) for count in counts]

    @tf.function(input_signature=[spec, tf.TensorSpec([], tf.int32)])
    def parts(batch, cut):
        found = unit_count(batch)
        assert isinstance(found, int) == known
        return found, slice_units(batch, 0, cut, found), slice_units(batch, cut, found, found)

    batch = [tf.range(count) for count in counts]
    for cut in range(units + 1):
        found, first, last = parts(batch, cut)
        assert found == units
        assert [len(leaf) for leaf in first] == [count * cut // units for count in counts]
        for leaf, *halves in zip(batch, first, last):
            np.testing.assert_array_equal(tf.concat(halves, 0), leaf)


def test_workers_that_read_arrays_of_different_samples_are_rejected():
    words = r"`y` must have as many samples as `x`, because each worker.*: 6 samples in `y`, 2 in `x`"
    with pytest.raises(ValueError, match=words):
        check_equal_samples((tf.zeros([2, 1]), tf.zeros([6, 1])))
    assert not check_equal_samples((tf.zeros([2, 1]), None, tf.zeros([2, 3]), tf.zeros([])))
