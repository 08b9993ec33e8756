"""TF_CONFIG is parsed, and every mistake is reported."""

import json
import os
import warnings

import pytest
import tensorflow as tf

import unisono
from unisono.callbacks.output_paths import check_launched_alone
from unisono.distribute import is_chief, num_workers, worker_index
from unisono.distribute.workers import cluster_start
from unisono.distribute.workers.cluster import Cluster, ClusterError, read_cluster

TWO = ["10.0.0.1:1111", "10.0.0.2:1111"]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def text_of(cluster, task):
    return json.dumps({"cluster": cluster, "task": task})


def config(cluster, task):
    return {"TF_CONFIG": text_of(cluster, task)}


def test_worker_zero_is_chief_when_no_task_is_named_chief():
    found = read_cluster(config({"worker": TWO}, {"type": "worker", "index": 0}))
    assert found == Cluster({"worker": tuple(TWO)}, "worker", 0)
    assert (found.is_chief, found.num_workers, found.worker_index, found.address) == (True, 2, 0, TWO[0])
    assert not read_cluster(config({"worker": TWO}, {"type": "worker", "index": 1})).is_chief


def test_chief_is_worker_zero_and_workers_follow():
    cluster = {"chief": TWO[:1], "worker": TWO[1:]}
    chief = read_cluster(config(cluster, {"type": "chief", "index": 0}))
    worker = read_cluster(config(cluster, {"type": "worker", "index": 0}))
    assert (chief.worker_index, chief.is_chief, chief.num_workers) == (0, True, 2)
    assert (worker.worker_index, worker.is_chief, worker.num_workers) == (1, False, 2)


def test_coordinator_with_parameter_servers_is_chief_and_not_a_worker():
    cluster = {"chief": TWO[:1], "worker": TWO[1:], "ps": ["10.0.0.3:1"]}
    found = read_cluster(config(cluster, {"type": "chief", "index": "0"}))
    assert (found.has_parameter_servers, found.num_workers, found.is_chief) == (True, 1, True)


def test_sparse_cluster_is_read_when_it_has_every_index():
    found = read_cluster(config({"worker": {"1": TWO[1], "0": TWO[0]}}, {"type": "worker", "index": 1}))
    assert found.address == TWO[1]


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": "{}"}])
def test_no_cluster_is_no_error(environ):
    assert read_cluster(environ) is None


WORKER_0 = {"type": "worker", "index": 0}
MISTAKES = [
    ("", "is set but empty"),
    ("{'cluster'", "is not JSON"),
    ("[1]", "must be a JSON object"),
    (json.dumps({"task": WORKER_0}), "has no 'cluster'"),
    (text_of(TWO, WORKER_0), "maps task types"),
    (json.dumps({"cluster": {"worker": TWO}}), "has no 'task'"),
    (text_of({"worker": TWO}, {"index": 0}), "has no 'task'"),
    (
        text_of({"worker": TWO}, {"type": "worker"}),
        "must be a whole number from 0 to 1, as there are 2 tasks of type 'worker'. Received: None",
    ),
    (text_of({"worker": TWO}, {"type": "worker", "index": 1.5}), "Received: 1.5"),
    (text_of({"worker": TWO}, {"type": "worker", "index": 2}), "from 0 to 1"),
    (text_of({"worker": TWO}, {"type": "worker", "index": -1}), "Received: -1"),
    (text_of({"worker": TWO}, {"type": "ps", "index": 0}), "Received: 'ps'"),
    (text_of({"wroker": TWO}, WORKER_0), "unknown task type 'wroker'"),
    (text_of({"worker": [TWO[0], TWO[0]]}, WORKER_0), "to two tasks"),
    (text_of({"worker": []}, WORKER_0), "names no task"),
    (text_of({"worker": "a:1"}, WORKER_0), "must be a list of addresses"),
    (text_of({"worker": ["a"]}, WORKER_0), "must be 'host:port'"),
    (text_of({"worker": ["a:0"]}, WORKER_0), "port from 1 to 65535"),
    ("[" * 20_000, "is not JSON"),
    ("9" * 5_000, "is not JSON"),
    (text_of({"worker": ["a:b"]}, WORKER_0), "Received: 'a:b'"),
    (text_of({"chief": TWO}, {"type": "chief"}), "names 2 chiefs"),
    (text_of({"worker": {"0": "a:1", "2": "b:1"}}, WORKER_0), "with the indices 0 to 1"),
]


@pytest.mark.parametrize(("text", "mistake"), MISTAKES)
def test_each_mistake_in_tf_config_is_named_in_one_sentence(text, mistake):
    with pytest.raises(ClusterError, match="TF_CONFIG") as caught:
        read_cluster({"TF_CONFIG": text})
    assert mistake in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tfjob_s_evaluator_runs_as_one_though_the_cluster_leaves_it_out(monkeypatch):
    """Kubeflow's TFJob: cluster without the evaluator, and an environment that TensorFlow's estimators read."""
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    for cluster in (jobs, {**jobs, "evaluator": ["d:1"]}):
        given = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}, "environment": "cloud"}
        monkeypatch.setenv("TF_CONFIG", json.dumps(given))
        found = read_cluster()
        assert (found.task_type, found.trains_together, found.num_workers) == ("evaluator", False, 0)
        assert (is_chief(), num_workers(), worker_index()) == (True, 1, 0)
        assert unisono.distribute.auto_strategy().num_replicas_in_sync == 4


def test_master_of_older_operators_is_the_chief(monkeypatch):
    cluster = {"master": ["a:1"], "worker": ["b:1"]}
    master = read_cluster(config(cluster, {"type": "master", "index": 0}))
    assert (master.task_type, master.is_chief, master.workers) == ("chief", True, ("a:1", "b:1"))
    worker = read_cluster(config(cluster, {"type": "worker", "index": 0}))
    assert (worker.worker_index, worker.is_chief) == (1, False)
    monkeypatch.setenv("TF_CONFIG", text_of(cluster, {"type": "worker", "index": 0}))
    cluster_start._check_tf_config()  # TensorFlow reads it next
    assert json.loads(os.environ["TF_CONFIG"])["cluster"] == {"chief": ["a:1"], "worker": ["b:1"]}


def test_sparse_cluster_of_a_tfjob_is_refused_in_its_own_words():
    given = {"sparseCluster": {"worker": {"0": "a:1"}, "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    with pytest.raises(
        ClusterError, match="'sparseCluster', which names only this worker: set enableDynamicWorker"
    ):
        read_cluster({"TF_CONFIG": json.dumps(given)})


def test_workers_of_tf_config_warn_where_the_model_spans_one(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text_of({"worker": TWO}, WORKER_0))
    with pytest.warns(UserWarning, match=r"worker 0 of 2, .*auto_strategy\(\)"):
        check_launched_alone([], tf.distribute.get_strategy())
    monkeypatch.setenv("TF_CONFIG", "[]")
    with pytest.warns(UserWarning, match=r"trains alone. TF_CONFIG must be a JSON object"):
        check_launched_alone([], tf.distribute.get_strategy())
    alone = {"worker": TWO[:1], "evaluator": TWO[1:]}
    for jobs, kind in ((alone, "worker"), (alone, "evaluator"), ({"chief": TWO[:1], "ps": TWO[1:]}, "chief")):
        monkeypatch.setenv("TF_CONFIG", text_of(jobs, {"type": kind, "index": 0}))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_launched_alone([], tf.distribute.get_strategy())
