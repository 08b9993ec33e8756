"""Every kind of input gives the same batches as arrays, in order, including the last sample."""

import functools

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from helpers import Batches, Iterable

from unisono.trainer.inputs import make_source

ROWS, BATCH = 22, 4
X = np.arange(ROWS * 3, dtype="float32").reshape(ROWS, 3)
Y = np.arange(ROWS) % 3


def read_epoch(source, epoch=0, most=3):
    """All batches of one epoch as NumPy arrays, read as in the fit loop: one compiled function for each reader."""
    source.begin_epoch(epoch)
    return read_on(source, most)


@functools.cache
def _compiled(reader):
    return tf.function(reader, input_signature=signatures[reader])


def compiled(reader, signature):
    """One function for each reader, as in the fit loop: the signature of a reader must never change."""
    known = signatures.setdefault(reader, signature and (signature, tf.TensorSpec([], tf.int32)))
    assert signature is None or str(known[0]) == str(signature)
    return _compiled(reader)


signatures = {}


def read_on(source, most=3, stop_after=None):
    batches = []
    while stop_after is None or len(batches) < stop_after:
        chunk = source.take(most if stop_after is None else min(most, stop_after - len(batches)))
        if chunk is None:
            break
        assert chunk.steps <= most
        function = compiled(chunk.reader, chunk.signature)
        drawn = 0
        for i in range(chunk.steps):
            batch = function(chunk.inputs, tf.constant(i))
            if chunk.open_ended:
                if not batch.has_value():
                    break
                batch = batch.get_value()
            drawn += 1
            if chunk.batch_size is not None:
                assert tf.nest.flatten(batch)[0].shape[0] == chunk.batch_size
            batches.append(
                tf.nest.map_structure(lambda t: t.numpy() if isinstance(t, tf.Tensor) else t, batch)
            )
        if drawn < chunk.steps:
            source.drawn(drawn)
    return batches


def parts(*arrays):
    return [tuple(a[i : i + BATCH] for a in arrays) for i in range(0, len(arrays[0]), BATCH)]


def unknown_length(dataset):
    return dataset.filter(lambda *batch: True)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def arrays(x, y, **others):
    return {"x": x, "y": y, "batch_size": BATCH, **others}


# The arguments of `make_source`.
KINDS = {
    "numpy": lambda: arrays(X, Y),
    "not contiguous": lambda: arrays(np.asfortranarray(X), np.repeat(Y, 2)[::2]),
    "lists of numbers": lambda: arrays(X.tolist(), Y.tolist()),
    "tensors": lambda: arrays(tf.constant(X), tf.constant(Y)),
    "numpy api": lambda: arrays(tf.experimental.numpy.array(X), Y),
    "streamed": lambda: arrays(X, Y, resident_bytes=0),
    "pandas": lambda: arrays(pd.DataFrame(X), Y),
    "dataset": lambda: {"x": dataset()},
    "dataset of unknown length": lambda: {"x": unknown_length(dataset())},
    "dataset of lists": lambda: {"x": dataset().prefetch(2)},
    "generator": lambda: {"x": iter(parts(X, Y))},
    "generator function's generator": lambda: {"x": (b for b in parts(X, Y))},
    "iterable": lambda: {"x": Iterable(parts(X, Y))},
    "PyDataset": lambda: {"x": Batches(parts(X, Y))},
    "PyDataset with threads": lambda: {"x": Batches(parts(X, Y), workers=3)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind_gives_the_samples_of_the_arrays_in_order(kind):
    source = make_source(**KINDS[kind]())
    batches = read_epoch(source)
    assert [len(b[1]) for b in batches] == [4, 4, 4, 4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([b[0] for b in batches]), X)
    np.testing.assert_array_equal(np.concatenate([b[1] for b in batches]), Y)
    assert all(spec.shape[0] is None for spec in source.spec)
    source.close()


@pytest.mark.parametrize("kind", [k for k in KINDS if "generator" not in k])
def test_kind_that_can_be_read_again_gives_the_same_in_every_epoch(kind):
    source = make_source(**KINDS[kind]())
    for epoch in range(3):
        assert len(read_epoch(source, epoch)) == 6
        assert source.steps_per_epoch == 6
    assert len(read_epoch(source, 0)) == 6  # as evaluate does after every epoch
    source.close()


@pytest.mark.parametrize(
    "kind", ["numpy", "streamed", "dataset", "dataset of unknown length", "iterable", "PyDataset"]
)
def test_steps_per_epoch_lets_a_pass_last_over_epochs_and_warns_at_its_end(kind):
    source = make_source(**KINDS[kind](), steps_per_epoch=4)
    assert source.steps_per_epoch == 4
    first = read_epoch(source, 0)
    with pytest.warns(UserWarning, match="ran out of data"):
        second = read_epoch(source, 1)
    np.testing.assert_array_equal(np.concatenate([b[0] for b in first + second]), X)
    np.testing.assert_array_equal(read_epoch(source, 2)[0][0], X[:4])
    source.close()


def test_torch_loader_gives_the_samples_of_the_arrays_and_is_read_again():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    source = make_source(torch.utils.data.DataLoader(data, batch_size=BATCH), class_weight={0: 2.0})
    assert source.steps_per_epoch == 6
    for epoch in range(2):
        batches = read_epoch(source, epoch)
        np.testing.assert_array_equal(np.concatenate([b[0] for b in batches]), X)
        np.testing.assert_array_equal(np.concatenate([b[2] for b in batches]), np.where(Y == 0, 2, 1))
    source.close()


def test_torch_loader_goes_on_in_its_own_order():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    data = torch.utils.data.TensorDataset(torch.from_numpy(X))

    def make():
        torch.manual_seed(3)
        return make_source(torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True))

    first = make()
    expected = [read_epoch(first, epoch) for epoch in range(3)]
    again = make()
    read_epoch(again, 0)
    again.begin_epoch(1)
    read_on(again, stop_after=2)
    position = again.state()
    resumed = make()
    resumed.restore(position)
    for found, right in ((read_on(resumed), expected[1][2:]), (read_epoch(resumed, 2), expected[2])):
        np.testing.assert_array_equal(
            np.concatenate([b[0] for b in found]), np.concatenate([b[0] for b in right])
        )


def test_torch_tensors_are_arrays():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.from_numpy(X).requires_grad_().t().contiguous().t()
    batches = read_epoch(make_source(x, torch.tensor(Y), batch_size=BATCH))
    np.testing.assert_array_equal(np.concatenate([b[0] for b in batches]), X)
    half = make_source(torch.ones(3, 2, dtype=torch.bfloat16))
    assert half.spec[0].dtype == tf.float32


def test_sparse_array_of_jax_is_a_sparse_tensor():
    numbers = np.array([[0, 1], [2, 0], [0, 3]], "float32")
    parts = {"indices": np.argwhere(numbers), "data": numbers[numbers > 0], "shape": numbers.shape}
    matrix = type(
        "BCOO", (), {"__module__": "jax.experimental.sparse.bcoo", **parts}
    )()  # it has no __array__
    (batch,) = read_epoch(make_source(matrix, batch_size=4, shuffle=False), most=1)
    np.testing.assert_array_equal(tf.sparse.to_dense(batch).numpy(), numbers)


def test_scipy_sparse_matrices_are_sparse_tensors():
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = sparse.random(9, 5, density=0.4, format="coo", rng=np.random.default_rng(1))
    batches = read_epoch(make_source(matrix, batch_size=4, shuffle=False), most=2)
    found = np.concatenate([tf.sparse.to_dense(b).numpy() for b in batches])
    np.testing.assert_allclose(found, matrix.toarray(), rtol=1e-6)
