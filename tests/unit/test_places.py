"""The table of launchers: each row with the variables that its platform documents, nested ones, and who trains alone."""

import json
import re
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import as_in_new_process

import unisono
from unisono.callbacks.output_paths import check_launched_alone
from unisono.distribute import is_chief, num_workers, register_launcher, worker_index
from unisono.distribute.environment import ClusterError
from unisono.distribute.workers import launcher_variables, launchers, places
from unisono.distribute.workers.places import find_place, read_place

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
OPEN_MPI_5 = {  # as mpirun of 5.0.11 sets them, among others
    **OPEN_MPI,
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-node1-17746@1",
}
PMI = {"PMI_SIZE": "2", "PMI_RANK": "0"}
MVAPICH = {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"}
TORCHRUN = {"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
AGENT = {**TORCHRUN, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
BATCH = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[1-2]"}
STEP = {**BATCH, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[9-10]"}
LSF = {
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "3",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "LSB_JOBID": "5",
}
BLAUNCH = {"LSF_PM_TASKID": "2", "LSB_HOSTS": "hostA hostA hostB", "LSB_DJOB_NUMPROC": "3", "LSB_JOBID": "5"}
PET = {
    "PET_NODE_RANK": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29400",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
    "SKYPILOT_TASK_ID": "sky-2026-01-01_train_1",
}
DSTACK = {"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "2", "DSTACK_MASTER_NODE_IP": "10.1.1.1"}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2", "algo-3"]', "SM_CURRENT_HOST": "algo-2"}
MACHINES = {"workerpool0": ["pool0-0:2222"], "workerpool1": ["pool1-0:2222", "pool1-1:2222"]}
VERTEX = {"CLUSTER_SPEC": json.dumps({"cluster": MACHINES, "task": {"type": "workerpool1", "index": 1}})}
KERAS = {
    "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1234,10.0.0.2:2345",
    "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
    "KERAS_DISTRIBUTION_PROCESS_ID": "1",
}
AZURE = {**OPEN_MPI, "AZ_BATCH_MASTER_NODE": "10.0.0.6:6000"}
GROUPS = {name: {"hosts": hosts} for name, hosts in (("data", ["algo-1"]), ("train", ["algo-2", "algo-3"]))}
HETEROGENEOUS = {
    **SAGEMAKER,
    "SM_INSTANCE_GROUPS_DICT": json.dumps(GROUPS),
    "SM_DISTRIBUTION_INSTANCE_GROUPS": '["train"]',
}
AI_PLATFORM = {
    "CLUSTER_SPEC": json.dumps(
        {"cluster": {"chief": ["m:1"], "worker": ["w:1", "w:2"]}, "task": {"type": "worker", "index": 1}}
    )
}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "2", "FLUX_JOB_ID": "fA"}
RUNPOD = {
    "PRIMARY_ADDR": "10.65.0.2",
    "MASTER_ADDR": "10.65.0.2",
    "PRIMARY_PORT": "29400",
    "MASTER_PORT": "29400",
    "NODE_RANK": "1",
    "NUM_NODES": "2",
    "NUM_TRAINERS": "8",
    "WORLD_SIZE": "16",
}
BEAKER = {"BEAKER_REPLICA_RANK": "1", "BEAKER_REPLICA_COUNT": "2", "BEAKER_LEADER_REPLICA_HOSTNAME": "cs-1"}
INDEXED = {"JOB_COMPLETION_INDEX": "2"}
POD = {**INDEXED, "WORLD_SIZE": "4", "MASTER_ADDR": "train-0.train"}
JOB_SET = {**INDEXED, "JOBSET_NAME": "train", "REPLICATED_JOB_NAME": "workers", "WORLD_SIZE": "8"}
SECOND_JOB = {**JOB_SET, "JOB_INDEX": "1", "PROCESSES_IN_JOB": "4"}
LAUNCH = {"UNISONO_RANK": "3", "UNISONO_SIZE": "4", "UNISONO_ENDPOINT": "node1:29500"}

ROWS = [
    (OPEN_MPI, "mpirun", 1, 2, None),
    (
        {**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "15.0;tcp://10.0.0.5,192.168.0.5:34911"},
        "mpirun",
        1,
        2,
        "10.0.0.5",
    ),
    (
        {
            **OPEN_MPI,
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_MCA_orte_hnp_uri": "1.0;tcp://192.0.2.1:3",
            "MASTER_ADDR": "n",
        },
        "mpirun",
        0,
        2,
        "n",
    ),
    (OPEN_MPI_5, "mpirun", 1, 2, "127.0.0.1"),
    ({**OPEN_MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpirun", 1, 2, None),
    (PMI, "mpirun", 0, 2, None),
    ({**PMI, "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"}, "mpirun", 0, 2, "127.0.0.1"),
    (MVAPICH, "mpirun", 0, 2, None),
    ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "p@1", "WORLD_SIZE": "2"}, "PMIx", 1, 2, None),
    (TORCHRUN, "torchrun", 3, 4, "host:29500"),
    (AGENT, "torchrun", 3, 4, "host:29501"),  # the agent has the port
    ({**TORCHRUN, "MASTER_ADDR": "fd00::1"}, "torchrun", 3, 4, "[fd00::1]:29500"),
    (STEP, "srun", 0, 2, "node9"),
    ({**STEP, "SLURM_STEP_NODELIST": "gpu[009,011-012],login1"}, "srun", 0, 2, "gpu009"),
    ({**STEP, "SLURM_STEP_NODELIST": "rack[2-3]-[07-08]n"}, "srun", 0, 2, "rack2-07n"),
    ({**STEP, "SLURM_STEP_NODELIST": "zeta,alpha"}, "srun", 0, 2, "zeta"),
    ({**STEP, "SLURM_DISTRIBUTION": "arbitrary"}, "srun", 0, 2, None),
    ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, "srun", 1, 2, None),
    (LSF, "jsrun", 1, 3, "10.10.10.0"),
    (BLAUNCH, "blaunch", 1, None, None),
    ({**BLAUNCH, "WORLD_SIZE": "2"}, "blaunch", 1, 2, "hostA"),
    (PET, "Kubeflow", 1, 2, "job-node-0-0.job:29400"),
    (SKYPILOT, "SkyPilot", 1, 2, "10.0.0.5"),
    (DSTACK, "dstack", 0, 2, "10.1.1.1"),
    (SAGEMAKER, "SageMaker", 1, 3, "algo-1"),
    (VERTEX, "Vertex AI", 2, 3, "pool0-0:2222 pool1-0:2222 pool1-1:2222"),
    (KERAS, "KERAS_DISTRIBUTION", 1, 2, "10.0.0.1:1234 10.0.0.2:2345"),
    (
        {**KERAS, "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1234"},
        "KERAS_DISTRIBUTION",
        1,
        2,
        "10.0.0.1:1234",
    ),
    (AZURE, "mpirun", 1, 2, "10.0.0.6"),
    ({**POD, "MASTER_PORT": "99"}, "Kubernetes", 2, 4, "train-0.train:99"),
    (JOB_SET, "Kubernetes", 2, 8, "train-workers-0-0.train"),
    (SECOND_JOB, "Kubernetes", 6, 8, "train-workers-0-0.train"),
    (INDEXED, "Kubernetes", 2, None, None),
    ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.17.0"}, "PMIx", 0, None, None),
    (LAUNCH, "launch", 3, 4, "node1:29500"),
    ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2"}, "horovodrun", 1, 2, "127.0.0.1"),
    ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "1"}, "horovodrun", 1, 2, None),
    (
        {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "vllm-0.vllm.default"},
        "LeaderWorkerSet",
        1,
        2,
        "vllm-0.vllm.default",
    ),
    ({"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "2"}, "AWS Batch", 0, 2, None),
    ({"VC_TASK_INDEX": "1", "VK_TASK_INDEX": "1"}, "Volcano", 1, None, None),
    ({**PET, "PET_NNODES": "1:4"}, "Kubeflow", 1, None, None),
    ({"RANK": "1"}, "torchrun", 1, None, None),
    # the second component of a heterogeneous job: the number counts over all, the size does not; so the first one's is wrong
    ({**STEP, "SLURM_PROCID": "2", "SLURM_HET_SIZE": "2"}, "srun", 2, None, None),
    ({**STEP, "SLURM_HET_SIZE": "2"}, "srun", 0, None, None),
    ({**STEP, "SLURM_HET_SIZE": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "n1"}, "srun", 0, 4, "n1"),
    ({**STEP, "SLURM_STEP_NODELIST": "r[08-10,12]c[1-2]-ib,login"}, "srun", 0, 2, "r08c1-ib"),
    ({**STEP, "SLURM_STEP_NODELIST": "n[1-2].cluster.local"}, "srun", 0, 2, "n1.cluster.local"),
    ({**STEP, "SLURM_STEP_NODELIST": "worker-[0-1]", "MASTER_ADDR": "[fd00::1]"}, "srun", 0, 2, "[fd00::1]"),
    ({"PMI_ID": "1", "PMI_PORT": "h:4000"}, "mpirun", 1, None, None),  # mpiexec.hydra -pmi-port
    ({"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "0", "PALS_APID": "a"}, "mpirun", 1, None, None),
    ({"ALPS_APP_PE": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "nid00001"}, "mpirun", 1, 2, "nid00001"),
    ({"MVP_COMM_WORLD_RANK": "1", "MVP_COMM_WORLD_SIZE": "2"}, "mpirun", 1, 2, None),
    (FLUX, "Flux", 1, 2, None),
    ({**FLUX, "FLUX_JOB_NNODES": "1"}, "Flux", 1, 2, "127.0.0.1"),
    ({**FLUX, "PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "n1"}, "mpirun", 1, 2, "n1"),
    ({"PBS_NODENUM": "1", "PBS_TASKNUM": "2"}, "pbsdsh", 1, None, None),
    ({"PBS_NODENUM": "10", "WORLD_SIZE": "12", "MASTER_ADDR": "n0"}, "pbsdsh", 10, 12, "n0"),
    ({"PBS_NODENUM": "0", "PBS_TASKNUM": "4"}, "pbsdsh", 0, None, None),
    ({"PBS_NODENUM": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}, "pbsdsh", 0, 2, "n0"),
    ({"PBS_NODENUM": "1", "PBS_VNODENUM": "5", "PBS_TASKNUM": "2"}, "pbsdsh", 5, None, None),  # Torque
    ({"NOMAD_ALLOC_INDEX": "1"}, "Nomad", 1, None, None),
    ({"NOMAD_ALLOC_INDEX": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}, "Nomad", 0, 2, "n0"),
    ({"BATCH_TASK_INDEX": "1", "BATCH_TASK_COUNT": "2", "BATCH_HOSTS_FILE": "/hosts"}, "Batch", 1, 2, None),
    (BEAKER, "Beaker", 1, 2, "cs-1"),
    (
        {"KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:1", "KERAS_DISTRIBUTION_PROCESS_ID": "1"},
        "KERAS_DISTRIBUTION",
        1,
        None,
        None,
    ),
    (RUNPOD, "RunPod", 1, 2, "10.65.0.2:29400"),
    ({"NODE_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "RunPod", 1, 2, "h"),  # Lightning's
    (
        {"MF_PARALLEL_NODE_INDEX": "1", "MF_PARALLEL_NUM_NODES": "2", "MF_PARALLEL_MAIN_IP": "10.0.0.1"},
        "Metaflow",
        1,
        2,
        "10.0.0.1",
    ),
    ({"_CONDOR_PROCNO": "1", "_CONDOR_NPROCS": "2"}, "HTCondor", 1, 2, None),
    (AI_PLATFORM, "Vertex AI", 2, 3, "m:1 w:1 w:2"),
    ({**HETEROGENEOUS, "SM_CURRENT_HOST": "algo-3"}, "SageMaker", 1, 2, "algo-2"),
    ({**TORCHRUN, "MASTER_ADDR": " host:77", "RANK": " 3"}, "torchrun", 3, 4, "host:77"),
    ({**TORCHRUN, "MASTER_ADDR": "fe80::1%eth0"}, "torchrun", 3, 4, "[fe80::1%eth0]:29500"),
]

NESTED = [  # around it, inside, what counts
    (STEP, AGENT, ("torchrun", 3, 4)),  # srun starts one torchrun on each machine
    (STEP, TORCHRUN, ("torchrun", 3, 4)),
    (BATCH, OPEN_MPI_5, ("mpirun", 1, 2)),
    (
        {**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"},
        OPEN_MPI,
        ("mpirun", 1, 2),
    ),  # its daemons by srun
    (STEP, PMI, ("srun", 0, 2)),  # srun --mpi=pmi2
    ({**STEP, "SLURM_PROCID": "1"}, {"PMIX_RANK": "1"}, ("srun", 1, 2)),  # srun --mpi=pmix
    (STEP, LAUNCH, ("launch", 3, 4)),
    (OPEN_MPI, LAUNCH, ("launch", 3, 4)),
    (BLAUNCH, AGENT, ("torchrun", 3, 4)),
    (BLAUNCH, OPEN_MPI_5, ("mpirun", 1, 2)),  # whose daemons LSF starts
    (SKYPILOT, AGENT, ("torchrun", 3, 4)),
    (SKYPILOT, LAUNCH, ("launch", 3, 4)),
    (INDEXED, AGENT, ("torchrun", 3, 4)),
    (POD, OPEN_MPI, ("mpirun", 1, 2)),
    (PET, AGENT, ("torchrun", 3, 4)),
    (RUNPOD, AGENT, ("torchrun", 3, 4)),
    (FLUX, AGENT, ("torchrun", 3, 4)),
    ({"PBS_NODENUM": "1"}, OPEN_MPI_5, ("mpirun", 1, 2)),
    ({"JOB_COMPLETION_INDEX": "1"}, PET, ("Kubeflow", 1, 2)),  # Trainer v2 makes a JobSet
    (SAGEMAKER, OPEN_MPI, ("mpirun", 1, 2)),
]


ONE_TASK = {  # srun -n 1 --mpi=pmix
    **{**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"},
    "PMIX_RANK": "0",
    "PMIX_NAMESPACE": "slurm.pmix.17.0",
}


def numbers(variables):
    place = read_place(variables)
    return place.launcher, place.rank, place.size


@pytest.fixture
def rank_file(tmp_path):
    """LSF's: the launch node, then one line a task."""
    path = tmp_path / "ranks"
    path.write_text("batch\n10.10.10.0\n10.10.10.1\n10.10.10.2\n")
    return {"LSB_DJOB_RANKFILE": str(path)}


def test_each_launcher_tells_rank_size_and_where_rank_0_is(rank_file):
    for variables, launcher, rank, size, where in ROWS:
        environ = {**rank_file, **variables}
        place = read_place(environ)
        assert numbers(environ) == (launcher, rank, size), variables
        known = where.split() if where else []
        assert len(place.addresses) == len(known), (variables, place)
        for address, expected in zip(place.addresses, known):
            assert address == expected or re.fullmatch(rf"{re.escape(expected)}:2\d{{4}}", address), address
        for given in (
            "{}",
            '{"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}',
        ):
            assert read_place({**environ, "TF_CONFIG": given}) is None


def test_of_nested_launchers_the_innermost_counts():
    for around, inside, expected in NESTED:
        assert numbers({**around, **inside}) == expected, (around, inside)


def test_number_that_is_too_high_does_not_hide_the_launcher_inside():
    around = {**STEP, "SLURM_PROCID": "2"}
    assert numbers({**around, **AGENT}) == ("torchrun", 3, 4)
    assert numbers({**OPEN_MPI, **TORCHRUN, "RANK": "9"}) == ("mpirun", 1, 2)


def test_two_launchers_of_one_level_with_different_numbers_are_an_error_that_names_both():
    with pytest.raises(ClusterError, match=r"task 3 of 4 \(RANK=3.* mpirun that it is task 1 of 2 .*unset"):
        read_place({**TORCHRUN, **OPEN_MPI})
    assert numbers({**TORCHRUN, **OPEN_MPI, "WORLD_SIZE": "2", "RANK": "1"})[1:] == (1, 2)


def test_process_that_was_started_alone_has_no_place():
    """Also a single process of each launcher."""
    for variables in (
        {},
        {**BATCH, "SLURM_NTASKS": "1"},
        ONE_TASK,
        {**ONE_TASK, "SLURM_NTASKS": "4"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMIX_NAMESPACE": "p@1"},
        {"NOMAD_ALLOC_INDEX": "0"},
        {**INDEXED, "WORLD_SIZE": "1", "RANK": "0"},  # torchrun of one process in each pod
        {**BEAKER, "BEAKER_REPLICA_RANK": "0", "BEAKER_REPLICA_COUNT": "1"},
        {"BATCH_TASK_INDEX": "3", "BATCH_TASK_COUNT": "9"},  # independent tasks
        {"BATCH_TASK_INDEX": "0", "BATCH_TASK_COUNT": "1", "BATCH_HOSTS_FILE": "/hosts"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"WORLD_SIZE": "1", **INDEXED},
        {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
        {"TRAINING_JOB_NAME": "job"},
        {"RANK": "captain"},
        {"PBS_NODENUM": "0", "PBS_TASKNUM": "1"},
        {**RUNPOD, "NODE_RANK": "0", "NUM_NODES": "1"},
        {"CLUSTER_SPEC": "{}"},
        {"CLUSTER_SPEC": '{"cluster": "mine"}'},
        {
            "CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:1"]}, "task": {"type": "workerpool0", "index": 0}}'
        },
    ):
        assert find_place(variables) is None, variables


@pytest.fixture
def read_again():
    """What the variables announce is read once a process."""
    yield places._find_announced.cache_clear
    places._find_announced.cache_clear()


def test_announced_processes_without_numbers_are_warned_of(monkeypatch, read_again):
    """A script under `sbatch`, a shell under `salloc`, and pods that know how many they are, but not which."""
    for variables, said in (
        (BATCH, r"of srun \(of the job\) announce 2 processes"),
        ({"SLURM_NTASKS": "4"}, "of srun .* announce 4 processes"),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "1"}, "of srun .* announce 2 processes"),
        (
            {"WORLD_SIZE": "2", "MASTER_ADDR": "train-0.train"},
            r"of torchrun \(WORLD_SIZE=2\) announce 2 processes",
        ),
        ({"WORLD_SIZE": "8"}, "announce 8 processes, .* set RANK"),
        ({"KERAS_DISTRIBUTION_NUM_PROCESSES": "2"}, "announce 2 processes"),
        (
            {"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "1", "PMI_SIZE": "4"},
            "of mpirun .PMI_SIZE=4.",
        ),
        ({"PET_NNODES": "2"}, "of Kubeflow .PET_NNODES=2. announce 2 processes"),
    ):
        place = find_place(variables)
        assert place.size is None and place.rank == 0
        as_in_new_process(monkeypatch)
        with monkeypatch.context() as patch, pytest.warns(UserWarning, match=said):
            set_variables(patch, variables)
            read_again()
            check_launched_alone([], tf.distribute.get_strategy())
        assert find_place({**variables, "TF_CONFIG": "{}"}) is None
        assert numbers({**variables, **AGENT}) == ("torchrun", 3, 4)


def test_mpi_around_another_pmix_server_is_not_taken_for_its_only_task():
    inside = {**ONE_TASK, "PMIX_RANK": "1", "PMIX_NAMESPACE": "prte@1"}  # prun in the only task of a step
    assert numbers(inside) == ("PMIx", 1, None)


def set_file(monkeypatch, name, path):
    monkeypatch.setattr(launcher_variables, name, path)


def test_trial_of_determined_is_read_from_its_file(monkeypatch, tmp_path):
    path = tmp_path / "rendezvous.json"
    set_file(monkeypatch, "_RENDEZVOUS", path)
    assert read_place({"DET_TRIAL_ID": "3"}) is None
    path.write_text(
        '{"container_addrs": ["10.0.0.1", "10.0.0.2"], "container_rank": 1, "container_slot_counts": [2, 2]}'
    )
    place = read_place({"DET_TRIAL_ID": "3", "DET_ALLOCATION_ID": "3.1"})
    assert (place.launcher, place.rank, place.size) == ("Determined", 1, 2)
    assert place.addresses[0].startswith("10.0.0.1:") and read_place({}) is None
    assert numbers({"DET_TRIAL_ID": "3", **AGENT}) == ("torchrun", 3, 4)  # its launch layer
    path.write_text('{"container_addrs": ["10.0.0.1"], "container_rank": 0}')
    assert read_place({"DET_TRIAL_ID": "3"}) is None


class Ray:
    """What is read of Ray in a worker."""

    def __init__(self, rank=None, size=None):
        self.rank, self.size, self.train = rank, size, self

    def is_initialized(self):
        return True

    def get_context(self):
        if self.rank is None:
            raise RuntimeError("not a worker of Ray Train")
        return self

    def get_world_rank(self):
        return self.rank

    def get_world_size(self):
        return self.size


def test_worker_of_ray_has_only_the_number_that_ray_train_gives(monkeypatch):
    """The node's variables, here Slurm's, SkyPilot's and LeaderWorkerSet's, are inherited by all of its workers."""
    inherited = {**STEP, **SKYPILOT, "LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "RAY_RAYLET_PID": "7"}
    monkeypatch.setitem(sys.modules, "ray", Ray())
    assert read_place(inherited) is None and read_place(STEP).size == 2
    monkeypatch.setitem(sys.modules, "ray", Ray(1, 3))
    assert numbers(inherited) == ("Ray Train", 1, 3)
    monkeypatch.setitem(sys.modules, "ray", Ray(0, 1))
    assert read_place(inherited) is None


def test_variables_that_are_wrong_are_named():
    for variables, said in (
        ({**TORCHRUN, "RANK": "4"}, "torchrun says that this process is task 4 of 4 .RANK=4, WORLD_SIZE=4"),
        ({**STEP, "SLURM_PROCID": "2"}, "srun says that this process is task 2 of 2"),
        ({**SAGEMAKER, "SM_CURRENT_HOST": "algo-4"}, "SM_CURRENT_HOST must be one .*algo-3.*'algo-4'"),
        ({"SM_HOSTS": SAGEMAKER["SM_HOSTS"]}, "SM_CURRENT_HOST must be one that trains"),
        ({"CLUSTER_SPEC": json.dumps({"cluster": MACHINES})}, "CLUSTER_SPEC must have a 'task'"),
        ({"CLUSTER_SPEC": VERTEX["CLUSTER_SPEC"].replace('"index": 1', '"index": 9')}, "CLUSTER_SPEC must"),
        ({**JOB_SET, "JOB_INDEX": "1"}, "JOB_INDEX=1 needs PROCESSES_IN_JOB"),
        (
            {**KERAS, "KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:1,b:1,c:1"},
            "KERAS_DISTRIBUTION names 3 addresses for 2 processes",
        ),
        ({**HETEROGENEOUS, "SM_CURRENT_HOST": "algo-1"}, r"one that trains \(algo-2, algo-3\).*'algo-1'"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://192.0.2.1:3"},
            "mpirun runs on 192.0.2.1, and task 0 on another host: set MASTER_ADDR",
        ),
        ({**TORCHRUN, "RANK": "node1"}, "torchrun: the number of this process must be .*'node1'"),
        ({**TORCHRUN, "MASTER_ADDR": "tcp://host"}, "torchrun: .*'tcp://host'.*MASTER_ADDR"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, "torchrun: .*'host:http'.*MASTER_PORT"),
        ({"SM_HOSTS": "[", "SM_CURRENT_HOST": "a"}, "SM_HOSTS is not JSON"),
        (
            {
                "CLUSTER_SPEC": VERTEX["CLUSTER_SPEC"].replace(
                    '"type": "workerpool1"', '"type": "workerpool3"'
                )
            },
            "into workerpool3",
        ),
    ):
        with pytest.raises(ClusterError, match=said):
            read_place(variables)


def test_sagemaker_without_its_toolkit_is_read_from_its_file(monkeypatch, tmp_path):
    path = tmp_path / "resourceconfig.json"
    path.write_text('{"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}')
    set_file(monkeypatch, "_RESOURCES", path)
    place = read_place({"TRAINING_JOB_NAME": "job"})
    assert (place.launcher, place.rank, place.size) == ("SageMaker", 1, 2)
    assert place.addresses[0].startswith("algo-1:")


def test_port_differs_between_jobs_and_restarts_and_is_the_same_for_all_tasks():
    def port(**more):
        return read_place({**STEP, **more}).addresses[0].rpartition(":")[2]

    assert port() == port(SLURM_PROCID="1") != port(SLURM_STEP_ID="1")
    assert port() != port(SLURM_JOB_ID="18") != port(SLURM_JOB_ID="18", SLURM_RESTART_COUNT="1")


def test_own_launcher_can_be_registered_and_replaced(monkeypatch):
    monkeypatch.setattr(launchers, "TABLE", list(launchers.TABLE))
    for host in ("OTHER", "FLUX_HEAD"):
        register_launcher(
            "flux", "FLUX_TASK_RANK", lambda e: e.get("FLUX_JOB_SIZE", ""), host, job="FLUX_JOB_ID"
        )
    environ = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_HEAD": "a:7", **PET}
    assert numbers(environ) == ("flux", 1, 2) and read_place(environ).addresses == ("a:7",)
    with pytest.raises(ValueError, match=r"`level` .*'core'"):
        register_launcher("flux", "R", "S", level="core")
    for wrong in ({"rank": 1}, {"size": None}, {"host": 2}, {"job": len}, {"name": len}):
        with pytest.raises(TypeError, match=f"`{next(iter(wrong))}` must be a str"):
            register_launcher(**{"name": "flux", "rank": "R", "size": "S", **wrong})


def set_variables(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[1]}-{row[4]}")
def test_process_of_each_launcher_never_trains_alone_in_silence(row, monkeypatch, mirrored, rank_file):
    variables, launcher, rank, size, _ = row
    set_variables(monkeypatch, {**rank_file, **variables})
    as_in_new_process(monkeypatch)
    cure = (
        r"auto_strategy\(\); set TF_CONFIG=\{\}"
        if size
        else r"set WORLD_SIZE .* MASTER_ADDR .* TF_CONFIG=\{\}"
    )
    for strategy in (tf.distribute.get_strategy(), mirrored):
        as_in_new_process(monkeypatch)
        with pytest.warns(UserWarning, match=rf"{launcher} started this process as .*{cure}"):
            check_launched_alone([keras.callbacks.EarlyStopping()], strategy)
    expected = (rank == 0, size, rank) if size else (True, 1, 0)
    assert (is_chief(), num_workers(), worker_index()) == expected
    if size is None:  # once
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_launched_alone([], mirrored)
    monkeypatch.setenv("TF_CONFIG", "{}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_launched_alone([], mirrored)
    assert (is_chief(), num_workers()) == (True, 1)


@pytest.mark.parametrize("variables", [OPEN_MPI, PMI])
def test_processes_that_cannot_be_joined_are_an_error_before_files_are_written(
    variables, monkeypatch, tmp_path
):
    set_variables(monkeypatch, variables)
    with pytest.raises(ClusterError, match=r"set MASTER_ADDR .* MASTER_PORT .* TF_CONFIG=\{\}"):
        unisono.distribute.auto_strategy()
    strategy = tf.distribute.get_strategy()
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


def test_tasks_that_can_be_joined_warn_where_the_model_spans_one(monkeypatch, tmp_path):
    """Only the chief writes, so no file is lost."""
    set_variables(monkeypatch, STEP)
    with pytest.warns(UserWarning, match=r"srun .*auto_strategy\(\)"):
        check_launched_alone([unisono.callbacks.BackupAndRestore(tmp_path)], tf.distribute.get_strategy())


def test_auto_strategy_goes_on_alone_and_says_so_where_the_size_is_unknown(monkeypatch):
    set_variables(monkeypatch, INDEXED)
    as_in_new_process(monkeypatch)
    with pytest.warns(UserWarning, match=r"number 2 of several, or of one"):
        assert unisono.distribute.auto_strategy().num_replicas_in_sync == 4
