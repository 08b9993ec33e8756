"""The basic collective operations on real workers."""

import helpers
import numpy as np
import pytest
import tensorflow as tf
from custom_loop import trained

pytestmark = pytest.mark.process


def test_collectives_on_workers_equal_one_device(start_workers, caplog, workers=2, replicas=2):
    run = start_workers("collectives", count=workers, replicas=replicas)
    run.succeed()
    found = []
    for index in range(workers):
        with np.load(run.out / f"worker-{index}.npz") as arrays:
            found.append(dict(arrays))
    total = workers * replicas
    ids = np.arange(total)
    for index, one in enumerate(found):
        assert one["ids"].tolist() == list(range(index * replicas, (index + 1) * replicas))
        assert one["local_ids"].tolist() == list(range(replicas))
        np.testing.assert_array_equal(one["plain"], np.full((replicas, 2), ids.sum()))
        np.testing.assert_array_equal(one["argument"], np.full(replicas, 3.0 * total))
        sparse = np.zeros((8, 2))
        sparse[:total] = ids[:, None]
        np.testing.assert_array_equal(one["sparse"], np.broadcast_to(sparse, (replicas, 8, 2)))
        np.testing.assert_array_equal(one["packed"], np.full((replicas, 6), ids.sum()))
        assert one["piece"] == 64 * 1024
        assert one["launched"].tolist() == [2**18 + 2, 2**18 + 1, 2**18]
        np.testing.assert_array_equal(one["variable"], np.full((replicas, 3), ids.sum()))
        np.testing.assert_array_equal(one["count"], np.full(replicas, 2))
        assert one["chief"].tolist() == [10.0, 0.1]
        assert one["cluster"].tolist() == [index == 0, workers, index, total]
        assert one["nothing"].tolist() == [[0, 3], [3, 0], [0, 0]]
        np.testing.assert_array_equal(one["waves"], np.full((replicas, 2), ids.sum() + total * 1j))
        np.testing.assert_array_equal(one["every wave"], np.tile(np.repeat(ids + 1j, 2), (replicas, 1)))
        assert str(one["refused"]) == (
            "samples must be the same on all workers for the arguments of fit. Received: 13 on worker 0, 14 on worker 1. "
            "Run the same program with the same data everywhere."
        )
    weight, loss = train_on_one_device()
    for one in found:
        np.testing.assert_allclose(one["weight"], np.broadcast_to(weight, one["weight"].shape), rtol=1e-5)
        np.testing.assert_allclose(one["loss"], np.full(replicas, loss), rtol=1e-5)
        np.testing.assert_array_equal(one["weight"][0], found[0]["weight"][0])  # copies are bitwise identical
        np.testing.assert_array_equal(one["weight"][-1], found[0]["weight"][0])
    for name, expected in trained(tf.distribute.get_strategy()).items():  # a loop with `replica_step`
        for one in found:
            helpers.assert_close(one[f"loop {name}"], np.array(expected), helpers.FLOAT64, name)
            np.testing.assert_array_equal(one[f"loop {name}"], found[0][f"loop {name}"])
    assert "AutoGraph" not in caplog.text  # a warning that it cannot convert one of our functions


def train_on_one_device():
    """Three steps of the same regression, in float64."""
    data = np.random.default_rng(0)
    x, y = data.normal(size=(13, 2)).astype("float32"), data.normal(size=(13, 1)).astype("float32")
    weight = np.array([[1.0], [2.0]])
    loss = 0.0
    for _ in range(3):
        error = x @ weight - y
        loss = float(np.mean(error**2))
        weight = weight - 0.1 * 2 * x.T @ error / 13
    return weight, loss


@pytest.mark.long
def test_programs_that_end_after_their_last_collective_end_without_an_error_on_all_workers(start_workers):
    ended = start_workers("last_collective", count=2, anew=True).succeed()
    assert [each.out.split() for each in ended] == [[str(index), "is", "over"] for index in range(2)]
