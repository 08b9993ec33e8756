"""TF_CONFIG and Slurm's variables are parsed, and every mistake is reported."""

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.callbacks.output_paths import check_launched_alone
from unisono.distribute.environment import launched_task
from unisono.distribute.workers.cluster import Cluster, ClusterError, read_cluster, read_tf_config

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
    assert read_tf_config(environ) is None


WORKER_0 = {"type": "worker", "index": 0}
MISTAKES = [
    ("", "is set but empty"),
    ("{'cluster'", "is not JSON"),
    ("[1]", "must be a JSON object"),
    (json.dumps({"task": WORKER_0}), "has no 'cluster'"),
    (text_of(TWO, WORKER_0), "maps task types"),
    (json.dumps({"cluster": {"worker": TWO}}), "has no 'task'"),
    (text_of({"worker": TWO}, {"index": 0}), "has no 'task'"),
    (text_of({"worker": TWO}, {"type": "worker"}), "must be a whole number. Received: None"),
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
    (text_of({"worker": {"0": "a:1", "2": "b:1"}}, WORKER_0), "every index from 0 to 1"),
]


@pytest.mark.parametrize(("text", "mistake"), MISTAKES)
def test_each_mistake_in_tf_config_is_named_in_one_sentence(text, mistake):
    with pytest.raises(ClusterError, match="TF_CONFIG") as caught:
        read_tf_config({"TF_CONFIG": text})
    assert mistake in str(caught.value)
    assert "\n" not in str(caught.value)


def test_slurm_tasks_are_workers(monkeypatch):
    tasks = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}
    nodes = {"SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    for name, value in {**tasks, **nodes}.items():
        monkeypatch.setenv(name, value)
    found = read_cluster()
    assert found.jobs["worker"] == ("node1:8888", "node1:8889", "node2:8888", "node2:8889")
    assert (found.worker_index, found.is_chief, found.num_workers) == (2, False, 4)


def test_slurm_variables_that_are_incomplete_are_rejected(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.delenv("SLURM_STEP_NODELIST", raising=False)
    with pytest.raises(ClusterError, match="Slurm"):
        read_cluster()


OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
PMI = {"PMI_SIZE": "2", "PMI_RANK": "0"}
TORCHRUN = {"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
STEP = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        (OPEN_MPI, ("mpirun", 1, 2)),
        ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"}, ("mpirun", 0, 2)),
        (PMI, ("mpirun", 0, 2)),
        (TORCHRUN, ("torchrun", 3, 4)),
        (STEP, ("srun", 0, 2)),
        ({**STEP, **PMI}, ("srun", 0, 2)),  # srun --mpi=pmi2
        ({**STEP, **TORCHRUN}, ("torchrun", 3, 4)),  # srun starts one torchrun on each machine
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, ("srun", 1, 2)),
    ],
)
def test_launcher_without_tf_config_is_found(variables, found):
    task = launched_task(variables)
    assert (task.launcher, task.rank, task.size) == found
    assert all(f"{name}={variables[name]}" in str(task) for name in (task.size_name, task.rank_name))
    for given in ("{}", '{"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}'):
        assert launched_task({**variables, "TF_CONFIG": given}) is None
    assert read_cluster({**variables, "TF_CONFIG": "{}"}) is None


def test_process_that_was_started_alone_is_silent():
    """Also a script under `sbatch`, an interactive shell under `salloc`, and a single process of each launcher."""
    alone = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    for variables in (
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
        {"SLURM_NTASKS": "4"},
        alone,
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"WORLD_SIZE": "8"},
        {"WORLD_SIZE": "the world", "RANK": "0"},
        {"WORLD_SIZE": "9" * 5000, "RANK": "0"},
    ):
        assert launched_task(variables) is None and read_cluster(variables) is None


@pytest.mark.parametrize("variables", [OPEN_MPI, PMI, TORCHRUN])
def test_unrelated_processes_are_reported_before_they_train(variables, monkeypatch, tmp_path):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError, match=r"--workers \d.* TF_CONFIG=\{\}"):
        unisono.distribute.auto_strategy()
    strategy = tf.distribute.get_strategy()
    with pytest.warns(UserWarning, match="each task trains a separate model"):
        check_launched_alone([keras.callbacks.EarlyStopping()], strategy)
    writing = [unisono.callbacks.BackupAndRestore(tmp_path)]
    with pytest.raises(ClusterError, match=r"overwrite each other's files \(BackupAndRestore\)"):
        check_launched_alone(writing, strategy)
    with pytest.warns(UserWarning, match="each task trains a separate model"):
        strategy.run(unisono.replica_step(tf.identity), (np.ones(2),))
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ClusterError):
        model.fit(np.ones((2, 2)), np.ones((2, 1)), callbacks=writing, verbose=0)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TF_CONFIG", "{}")
    check_launched_alone(writing, strategy)


def test_tasks_of_slurm_warn_where_the_model_spans_one(monkeypatch, tmp_path):
    """Only the chief writes, so no file is lost."""
    nodes = {"SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    for name, value in {**STEP, **nodes}.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=r"srun .*auto_strategy\(\)"):
        check_launched_alone([unisono.callbacks.BackupAndRestore(tmp_path)], tf.distribute.get_strategy())


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
