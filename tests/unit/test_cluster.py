"""TF_CONFIG and Slurm's variables: read, and each mistake named."""

import json

import pytest

from unisono.distribute.workers.cluster import Cluster, ClusterError, read_cluster, read_tf_config

TWO = ["10.0.0.1:1111", "10.0.0.2:1111"]


def config(cluster, task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


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
    assert read_tf_config(environ) is None


WORKER_0 = {"type": "worker", "index": 0}
MISTAKES = [
    ("", "is set but empty"),
    ("{'cluster'", "is not JSON"),
    ("[1]", "must be a JSON object"),
    (json.dumps({"task": WORKER_0}), "has no 'cluster'"),
    (json.dumps({"cluster": TWO, "task": WORKER_0}), "maps task types"),
    (json.dumps({"cluster": {"worker": TWO}}), "has no 'task'"),
    (json.dumps({"cluster": {"worker": TWO}, "task": {"index": 0}}), "has no 'task'"),
    (
        json.dumps({"cluster": {"worker": TWO}, "task": {"type": "worker"}}),
        "must be a whole number. Received: None",
    ),
    (json.dumps({"cluster": {"worker": TWO}, "task": {"type": "worker", "index": 1.5}}), "Received: 1.5"),
    (json.dumps({"cluster": {"worker": TWO}, "task": {"type": "worker", "index": 2}}), "from 0 to 1"),
    (json.dumps({"cluster": {"worker": TWO}, "task": {"type": "worker", "index": -1}}), "Received: -1"),
    (json.dumps({"cluster": {"worker": TWO}, "task": {"type": "ps", "index": 0}}), "Received: 'ps'"),
    (json.dumps({"cluster": {"wroker": TWO}, "task": WORKER_0}), "unknown task type 'wroker'"),
    (json.dumps({"cluster": {"worker": [TWO[0], TWO[0]]}, "task": WORKER_0}), "to two tasks"),
    (json.dumps({"cluster": {"worker": []}, "task": WORKER_0}), "names no task"),
    (json.dumps({"cluster": {"worker": "a:1"}, "task": WORKER_0}), "must be a list of addresses"),
    (json.dumps({"cluster": {"worker": ["a"]}, "task": WORKER_0}), "must be 'host:port'"),
    (json.dumps({"cluster": {"worker": ["a:0"]}, "task": WORKER_0}), "port from 1 to 65535"),
    (json.dumps({"cluster": {"worker": ["a:b"]}, "task": WORKER_0}), "Received: 'a:b'"),
    (json.dumps({"cluster": {"chief": TWO}, "task": {"type": "chief"}}), "names 2 chiefs"),
    (
        json.dumps({"cluster": {"worker": {"0": "a:1", "2": "b:1"}}, "task": WORKER_0}),
        "every index from 0 to 1",
    ),
]


@pytest.mark.parametrize(("text", "mistake"), MISTAKES)
def test_each_mistake_in_tf_config_is_named_in_one_sentence(text, mistake):
    with pytest.raises(ClusterError, match="TF_CONFIG") as caught:
        read_tf_config({"TF_CONFIG": text})
    assert mistake in str(caught.value)
    assert "\n" not in str(caught.value)


def test_slurm_tasks_are_workers(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name, value in {
        "PROCID": "2",
        "STEP_NUM_TASKS": "4",
        "STEP_NODELIST": "node[1-2]",
        "STEP_TASKS_PER_NODE": "2(x2)",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    found = read_cluster()
    assert found.jobs["worker"] == ("node1:8888", "node1:8889", "node2:8888", "node2:8889")
    assert (found.worker_index, found.is_chief, found.num_workers) == (2, False, 4)


def test_slurm_variables_that_are_incomplete_are_refused(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.delenv("SLURM_STEP_NODELIST", raising=False)
    with pytest.raises(ClusterError, match="Slurm"):
        read_cluster()


def test_sbatch_without_srun_is_one_process():
    assert read_cluster({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None
