"""The table of launchers: the variables with which each tells a process its rank, their number, and where rank 0 is."""

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..environment import ENDPOINT, RANK, SIZE, ClusterError
from .addresses import is_here

_POOLS = ("workerpool0", "workerpool1", "chief", "master", "worker")  # of Vertex AI and of AI Platform
_RESOURCES = "/opt/ml/input/config/resourceconfig.json"
LEVELS = ("cluster", "process", "task", "node")  # what a launcher numbers; the innermost comes first
Environ = Mapping[str, str]
Column = str | Callable[[Environ], str]


class Launcher(NamedTuple):
    """One entry. A column names variables, the first that is set counts, or is a function of all; "" is not known."""

    name: str
    level: str
    rank: Column
    size: Column
    host: Column = ""  # of rank 0, perhaps with a port, or the list of all
    local_size: Column = ""  # processes on this machine
    job: str = ""  # variables whose values together are unlike those of other runs


def _mpi_host(environ: Environ) -> str:
    """Return Azure's first node, without the port of its agent; or where Open MPI 4 runs `mpirun`, if task 0 is there."""
    if azure := environ.get("AZ_BATCH_MASTER_NODE") or environ.get("AZ_BATCHAI_MPI_MASTER_NODE", ""):
        return azure.partition(":")[0]
    found = re.search(r"tcp://([^,:;]+)", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    is_first = environ.get("OMPI_COMM_WORLD_RANK") == "0" and "MASTER_ADDR" not in environ
    if found and is_first and not is_here(found[1]):
        raise ClusterError(
            f"mpirun runs on {found[1]}, and task 0 on another host: set MASTER_ADDR to the host of task 0, for all (-x "
            "MASTER_ADDR=...)."
        )
    return found[1] if found else ""


def _slurm_rank(environ: Environ) -> str:
    """Return the rank; a script under `sbatch` has the variables of task 0, and may be the only process."""
    rank = environ.get("SLURM_PROCID", "")
    return "" if rank == "0" and "SLURM_STEP_NUM_TASKS" not in environ else rank


def _slurm_size(environ: Environ) -> str:
    """Return the tasks of a step; in a heterogeneous job these are those of one component, while ranks count over all."""
    if "SLURM_HET_SIZE" in environ:
        return ""
    return environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS", "")


def _slurm_host(environ: Environ) -> str:
    """Return `gpu9` of `gpu[9-10,12],login1`, where task 0 is, unless a file orders the tasks."""
    if environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary") or "SLURM_HET_SIZE" in environ:
        return ""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).partition(",")[0]


def _lsf_host(environ: Environ) -> str:
    """Return the second host of the rank file: the first is the launch node."""
    with contextlib.suppress(OSError, IndexError):
        return Path(environ.get("LSB_DJOB_RANKFILE", "")).read_text().split()[1]
    return ""


def _blaunch_rank(environ: Environ) -> str:
    """Return the number of a task of `blaunch`, which counts from 1."""
    task = environ.get("LSF_PM_TASKID", "")
    return str(int(task) - 1) if task.isdecimal() and int(task) else ""


def _read_sagemaker(environ: Environ) -> tuple[list[str], str]:
    """Return the instances that train, and this one; without its toolkit, SageMaker itself writes them into a file."""
    hosts, own = _read_json(environ, "SM_HOSTS"), environ.get("SM_CURRENT_HOST", "")
    if hosts is None and "TRAINING_JOB_NAME" in environ:
        with contextlib.suppress(OSError, ValueError, LookupError):
            found = json.loads(Path(_RESOURCES).read_text())
            hosts, own = found["hosts"], found["current_host"]
    groups, named = (
        _read_json(environ, f"SM_{n}") for n in ("INSTANCE_GROUPS_DICT", "DISTRIBUTION_INSTANCE_GROUPS")
    )
    if groups and named:  # of a heterogeneous cluster those in the estimator's `distribution`
        hosts = [host for name in named for host in groups[name]["hosts"]]
    return hosts if isinstance(hosts, list) else [], own


def _sagemaker_rank(environ: Environ) -> str:
    hosts, own = _read_sagemaker(environ)
    if hosts and own not in hosts:
        raise ClusterError(f"SM_CURRENT_HOST must be one that trains ({', '.join(hosts)}). Received: {own!r}")
    return str(hosts.index(own)) if hosts else ""


def _vertex_machines(environ: Environ) -> list[str]:
    """Return the machines that train."""
    spec = _read_json(environ, "CLUSTER_SPEC")
    pools = spec.get("cluster") if isinstance(spec, dict) else None
    pools = pools if isinstance(pools, dict) else {}  # something else may have this name
    return [machine for name in _POOLS for machine in pools.get(name, ())]


def _vertex_rank(environ: Environ) -> str:
    if not (machines := _vertex_machines(environ)):
        return ""
    spec = _read_json(environ, "CLUSTER_SPEC")
    task = spec.get("task") or {}
    if (pool := task.get("type")) not in (*_POOLS, None):
        raise ClusterError(
            f"CLUSTER_SPEC puts this process into {pool}, but only {', '.join(_POOLS)} train: set TF_CONFIG for it."
        )
    try:
        return str(machines.index(spec["cluster"][pool][int(task["index"])]))
    except (LookupError, TypeError, ValueError):
        raise ClusterError(
            "CLUSTER_SPEC must have a 'task' with the 'type' and 'index' of a machine of its 'cluster'. Received: "
            f"{environ['CLUSTER_SPEC'][:200]}"
        ) from None


def _read_json(environ: Environ, name: str) -> Any:
    try:
        return json.loads(environ.get(name) or "null")
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{name} is not JSON: {error}.") from None


def _pod_rank(environ: Environ) -> str:
    """Return the number of a pod among those of an Indexed Job, or of all jobs of a JobSet."""
    names = ("JOB_COMPLETION_INDEX", "JOB_INDEX", "PROCESSES_IN_JOB")
    index, job, pods = (environ.get(name) or "0" for name in names)
    whole = names[0] in environ and all(map(str.isdecimal, (index, job, pods)))
    if whole and int(job) and not int(pods):
        raise ClusterError(
            f"JOB_INDEX={job} needs PROCESSES_IN_JOB, the number of pods of each job of the JobSet."
        )
    return str(int(job) * int(pods) + int(index)) if whole else ""


def _pod_host(environ: Environ) -> str:
    job_set, job = environ.get("JOBSET_NAME"), environ.get("REPLICATED_JOB_NAME")
    return f"{job_set}-{job}-0-0.{job_set}" if job_set and job else ""


# fmt: off
TABLE: list[Launcher] = [
    Launcher("launch", "cluster", RANK, SIZE, ENDPOINT),
    # keras.distribution.initialize
    Launcher("KERAS_DISTRIBUTION", "cluster", "KERAS_DISTRIBUTION_PROCESS_ID",
             lambda e: e.get("KERAS_DISTRIBUTION_NUM_PROCESSES")
             or str(e.get("KERAS_DISTRIBUTION_JOB_ADDRESSES", "").count(",") + 1),
             "KERAS_DISTRIBUTION_JOB_ADDRESSES"),
    # docs.pytorch.org/docs/stable/elastic/run.html; so do Kubeflow's PyTorchJob, Azure ML and Vertex AI
    Launcher("torchrun", "process", "RANK", "WORLD_SIZE", "", "LOCAL_WORLD_SIZE",
             "TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT"),
    # docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    Launcher("mpirun", "process", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _mpi_host, "OMPI_COMM_WORLD_LOCAL_SIZE",
             "PMIX_NAMESPACE OMPI_MCA_ess_base_jobid"),
    # Hydra of MPICH and of Intel MPI (PMI_ID with -pmi-port); Cray's PALS, and ALPS (aprun)
    Launcher("mpirun", "process", "PMI_RANK PMI_ID PALS_RANKID ALPS_APP_PE", "PMI_SIZE", _mpi_host,
             "MPI_LOCALNRANKS PMI_LOCAL_SIZE"),
    # the guides of MVAPICH2 and MVAPICH 3, parameters of mpirun_rsh
    Launcher("mpirun", "process", "MV2_COMM_WORLD_RANK MVP_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE MVP_COMM_WORLD_SIZE", "",
             "MV2_COMM_WORLD_LOCAL_SIZE MVP_COMM_WORLD_LOCAL_SIZE"),
    # the PMIx standard, PMIx_Init
    Launcher("PMIx", "process", "PMIX_RANK", "", job="PMIX_NAMESPACE"),
    # horovod.readthedocs.io: horovodrun, Ray and Spark
    Launcher("horovodrun", "process", "HOROVOD_RANK", "HOROVOD_SIZE", "", "HOROVOD_LOCAL_SIZE"),
    # slurm.schedmd.com/srun.html, output environment variables
    Launcher("srun", "task", _slurm_rank, _slurm_size, _slurm_host,
             job="SLURM_JOB_ID SLURM_STEP_ID SLURM_RESTART_COUNT"),
    # flux-framework.readthedocs.io, flux-environment(7)
    Launcher("Flux", "task", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "",
             lambda e: e.get("FLUX_JOB_SIZE", "") if e.get("FLUX_JOB_NNODES") == "1" else "", "FLUX_JOB_ID"),
    # OpenPBS' pbsdsh; a job script has the number 0 itself, and may be the only process
    Launcher("pbsdsh", "task", lambda e: e.get("PBS_NODENUM", "").lstrip("0"), ""),
    # IBM's Job Step Manager under LSF, as in Lightning's LSFEnvironment
    Launcher("jsrun", "task", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", _lsf_host, job="LSB_JOBID"),
    # LSF's blaunch, as in PRRTE's src/mca/ess/lsf; with -z it starts fewer tasks than LSB_DJOB_NUMPROC says
    Launcher("blaunch", "task", _blaunch_rank, "", "LSB_HOSTS", job="LSB_JOBID"),
    # Kubeflow Trainer v2: the variables of torchrun's own options
    Launcher("Kubeflow", "node", "PET_NODE_RANK", "PET_NNODES",
             lambda e: ":".join(filter(None, map(e.get, ("PET_MASTER_ADDR", "PET_MASTER_PORT"))))),
    # docs.runpod.io/instant-clusters/configuration, whose WORLD_SIZE counts GPUs; Lightning's own variables
    Launcher("RunPod", "node", "NODE_RANK", "NUM_NODES"),
    # docs.metaflow.org, @parallel; HTCondor's manual, parallel universe
    Launcher("Metaflow", "node", "MF_PARALLEL_NODE_INDEX", "MF_PARALLEL_NUM_NODES", "MF_PARALLEL_MAIN_IP"),
    Launcher("HTCondor", "node", "_CONDOR_PROCNO", "_CONDOR_NPROCS"),
    # docs.skypilot.co, running-jobs/environment-variables
    Launcher("SkyPilot", "node", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", job="SKYPILOT_TASK_ID"),
    # dstack.ai/docs, distributed tasks
    Launcher("dstack", "node", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP", job="DSTACK_RUN_NAME"),
    # github.com/aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md
    Launcher("SageMaker", "node", _sagemaker_rank, lambda e: str(len(_read_sagemaker(e)[0])),
             lambda e: ",".join(_read_sagemaker(e)[0]), job="TRAINING_JOB_NAME"),
    # cloud.google.com/vertex-ai/docs/training/distributed-training, CLUSTER_SPEC
    Launcher("Vertex AI", "node", _vertex_rank, lambda e: str(len(_vertex_machines(e))),
             lambda e: ",".join(_vertex_machines(e)), job="CLOUD_ML_JOB_ID"),
    # kubernetes.io/docs/concepts/workloads/controllers/job; JobSet's names by the downward API, as in its examples
    Launcher("Kubernetes", "node", _pod_rank, "", _pod_host, job="JOBSET_NAME REPLICATED_JOB_NAME"),
    # lws.sigs.k8s.io, the variables of its pods
    Launcher("LeaderWorkerSet", "node", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS",
             job="LWS_LEADER_ADDRESS"),
    # volcano.sh: its env plugin numbers the pods of each task; its plugins for TensorFlow and PyTorch say more
    Launcher("Volcano", "node", "VC_TASK_INDEX VK_TASK_INDEX", ""),
    # docs.aws.amazon.com/batch, multi-node parallel jobs; the main node does not get its own address
    Launcher("AWS Batch", "node", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"),
]
# fmt: on


def register_launcher(
    name: str, rank: Column, size: Column, host: Column = "", *, level: str = "process", job: str = ""
) -> None:
    """Add a launcher to those whose processes `auto_strategy()` joins, or replace the one of this name.

    Call it before `auto_strategy()`, in every process. A column is the name of an environment variable, or a function that
    gets all variables and returns a str: "" where the launcher did not start this process.

    Args:
        name: the launcher's name in messages.
        rank: the number of this process, from 0.
        size: the number of processes.
        host: the host of process 0, with or without a port; or "host:port" of every process, separated by commas.
            MASTER_ADDR and MASTER_PORT come before it.
        level: what is numbered, "process", "task" or "node". Where one launcher started another, "process" comes before
            "task", and "task" before "node".
        job: names of variables, separated by spaces, whose values together differ between runs; the default port is derived
            from them.

    Raises:
        TypeError: a column is neither a str nor a function.
        ValueError: `level` is anything else.

    Examples:
        >>> unisono.distribute.register_launcher("mine", "MY_RANK", "MY_SIZE", "MY_FIRST_HOST", job="MY_JOB_ID")
    """
    from ..arguments import show  # imports NumPy, which `--help` need not wait for

    for each, value in {"name": name, "rank": rank, "size": size, "host": host, "job": job}.items():
        if not isinstance(value, str) and (each in ("name", "job") or not callable(value)):
            raise TypeError(f"`{each}` must be a str, or for a column a function. Received: {show(value)}")
    if level not in LEVELS[1:]:
        raise ValueError(f"`level` must be 'process', 'task' or 'node'. Received: {show(level)}")
    TABLE[:] = [row for row in TABLE if row.name != name]
    TABLE.append(Launcher(name, level, rank, size, host, job=job))
