"""Batches from inputs of other libraries have the samples in order; `test_input_kinds.py` has the other kinds."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import next_batch, source_of

ROWS, BATCH = 22, 4
X = np.arange(ROWS * 3, dtype="float32").reshape(ROWS, 3)
Y = np.arange(ROWS) % 3


def read_epoch(source, epoch=0):
    """All batches of one epoch."""
    source.begin_epoch(epoch)
    return read_on(source)


def read_on(source, stop_after=None):
    batches = []
    while len(batches) != stop_after and (batch := next_batch(source)) is not None:
        batches.append(batch)
    return batches


def joined(batches, part=0):
    return np.concatenate([batch[part] for batch in batches])


def test_torch_loader_gives_the_samples_of_the_arrays_and_is_read_again():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    source = source_of(torch.utils.data.DataLoader(data, batch_size=BATCH), class_weight={0: 2.0})
    assert source.steps_per_epoch == 6
    for epoch in range(2):
        batches = read_epoch(source, epoch)
        np.testing.assert_array_equal(joined(batches), X)
        np.testing.assert_array_equal(joined(batches, 2), np.where(Y == 0, 2, 1))
    source.close()


def test_torch_loader_goes_on_in_its_own_order():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    data = torch.utils.data.TensorDataset(torch.from_numpy(X))

    def make():
        torch.manual_seed(3)
        return source_of(torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True))

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
        np.testing.assert_array_equal(joined(found), joined(right))


def test_torch_tensors_are_arrays():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.from_numpy(X).requires_grad_().t().contiguous().t()
    batches = read_epoch(source_of(x, torch.tensor(Y), batch_size=BATCH))
    np.testing.assert_array_equal(joined(batches), X)
    half = source_of(torch.ones(3, 2, dtype=torch.bfloat16))
    assert half.spec[0].dtype == tf.float32


def test_sparse_array_of_jax_is_a_sparse_tensor():
    numbers = np.array([[0, 1], [2, 0], [0, 3]], "float32")
    parts = {"indices": np.argwhere(numbers), "data": numbers[numbers > 0], "shape": numbers.shape}
    # it has no __array__
    matrix = type("BCOO", (), {"__module__": "jax.experimental.sparse.bcoo", **parts})()
    (batch,) = read_epoch(source_of(matrix, batch_size=4, shuffle=False))
    np.testing.assert_array_equal(tf.sparse.to_dense(batch).numpy(), numbers)


def test_scipy_sparse_matrices_are_sparse_tensors():
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = sparse.random(9, 5, density=0.4, format="coo", rng=np.random.default_rng(1))
    batches = read_epoch(source_of(matrix, batch_size=4, shuffle=False))
    found = np.concatenate([tf.sparse.to_dense(b).numpy() for b in batches])
    np.testing.assert_allclose(found, matrix.toarray(), rtol=1e-6)
