"""`keras.distribution.initialize` and `list_devices` in one of several workers."""

from __future__ import annotations

import json

import keras
import pytest

import unisono  # noqa: F401  (which adds `initialize`)
from unisono.distribute import strategy_of
from unisono.distribute.workers.cluster import ClusterError

TWO = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})


def test_list_devices_names_those_of_all_workers(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TWO)
    monkeypatch.setenv("UNISONO_REPLICAS_PER_WORKER", "2")
    keras.distribution.initialize()
    assert keras.distribution.list_devices() == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert keras.distribution.list_devices("cpu") == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert keras.distribution.list_devices("gpu") == []
    monkeypatch.delenv("TF_CONFIG")
    assert keras.distribution.list_devices() == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]  # of this process


def test_arguments_that_agree_with_tf_config_are_accepted(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TWO)
    keras.distribution.initialize("a:1,b:1", 2, 1)
    with pytest.raises(ClusterError, match=r"`process_id` \(0\).*contradict TF_CONFIG.*worker 1 of 2"):
        keras.distribution.initialize("a:1,b:1", 2, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:1,b:1", 3, 0), "address.*of process 0, or of each of the 3"),
        (("a:1", 2, 2), "`process_id` must be less than `num_processes` \\(2\\)"),
        ((None, 2, 0), "`job_addresses` must"),
        (("a:1", None, 0), "`num_processes`"),
        (("a", 2, 0), "`job_addresses`: "),
    ],
)
def test_wrong_arguments_name_themselves_and_the_fix(arguments, message):
    with pytest.raises((ClusterError, ValueError, TypeError), match=message):
        keras.distribution.initialize(*arguments)


def test_initialize_without_a_cluster_raises():
    with pytest.raises(ClusterError, match="finds no cluster: pass `job_addresses`"):
        keras.distribution.initialize()


@pytest.mark.parametrize("devices", [None, ["cpu:0", "cpu:1", "cpu:4"]])
def test_mesh_of_other_devices_than_the_cluster_raises_with_both_numbers(monkeypatch, devices):
    monkeypatch.setenv("TF_CONFIG", TWO)
    count = 4 if devices is None else 3
    with pytest.raises(
        ClusterError, match=rf"has {count} devices.*cluster has 2, 1 on each of 2 workers.*initialize"
    ):
        strategy_of(keras.distribution.DataParallel(devices=devices or [f"cpu:{n}" for n in range(4)]))


def test_order_of_the_batch_must_be_that_of_the_workers(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TWO)
    with pytest.raises(
        ClusterError, match="along 'batch', the axis of the batch, in the order of the workers"
    ):
        strategy_of(keras.distribution.DataParallel(devices=["cpu:1", "cpu:0"]))
