"""What a column of the table of launchers derives from several variables, or from a file of the launcher."""

import contextlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..environment import ClusterError
from .addresses import is_here

_POOLS = ("workerpool0", "workerpool1", "chief", "master", "worker")  # of Vertex AI and of AI Platform
_RESOURCES = "/opt/ml/input/config/resourceconfig.json"
_RENDEZVOUS = "/run/determined/info/rendezvous.json"
Environ = Mapping[str, str]


def find_mpi_host(environ: Environ) -> str:
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


def find_slurm_rank(environ: Environ) -> str:
    """Return the rank; a script under `sbatch` has the variables of task 0, and may be the only process."""
    rank = environ.get("SLURM_PROCID", "")
    return "" if rank == "0" and "SLURM_STEP_NUM_TASKS" not in environ else rank


def find_slurm_size(environ: Environ) -> str:
    """Return the tasks of a step; in a heterogeneous job these are those of one component, while ranks count over all."""
    if "SLURM_HET_SIZE" in environ:
        return ""
    # Without a step, perhaps only the nodes.
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES")
    return next(filter(None, map(environ.get, names)), "")


def find_slurm_host(environ: Environ) -> str:
    """Return `gpu9` of `gpu[9-10,12],login1`, where task 0 is, unless a file orders the tasks."""
    if environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary") or "SLURM_HET_SIZE" in environ:
        return ""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).partition(",")[0]


def find_pmix_size(environ: Environ) -> str:
    """Return the size of the launcher that numbers by PMIx: `mpirun`, or Slurm, which names the space after its step."""
    step = "slurm.pmix.{SLURM_JOB_ID}.{SLURM_STEP_ID}".format_map(
        {"SLURM_JOB_ID": "", "SLURM_STEP_ID": "", **environ}
    )
    own = environ.get("PMIX_NAMESPACE") == step
    return environ.get("OMPI_COMM_WORLD_SIZE", "") or (find_slurm_size(environ) if own else "")


def find_pbs_rank(environ: Environ) -> str:
    """Return the rank; a job script is task 1 on node 0 itself, and may be the only process."""
    rank = environ.get("PBS_VNODENUM") or environ.get("PBS_NODENUM", "")
    alone = environ.get("PBS_TASKNUM", "1") == "1" and "WORLD_SIZE" not in environ
    return "" if rank == "0" and alone else rank


def find_nomad_rank(environ: Environ) -> str:
    """Return the rank; an allocation that is the only one of its group has the index 0, too."""
    rank = environ.get("NOMAD_ALLOC_INDEX", "")
    return "" if rank == "0" and "WORLD_SIZE" not in environ else rank


def find_lsf_host(environ: Environ) -> str:
    """Return the second host of the rank file: the first is the launch node."""
    with contextlib.suppress(OSError, IndexError):
        return Path(environ.get("LSB_DJOB_RANKFILE", "")).read_text().split()[1]
    return ""


def find_blaunch_rank(environ: Environ) -> str:
    """Return the number of a task of `blaunch`, which counts from 1."""
    task = environ.get("LSF_PM_TASKID", "")
    return str(int(task) - 1) if task.isdecimal() and int(task) else ""


def read_sagemaker(environ: Environ) -> tuple[list[str], str]:
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


def find_sagemaker_rank(environ: Environ) -> str:
    """Return this instance's place among those that train."""
    hosts, own = read_sagemaker(environ)
    if hosts and own not in hosts:
        raise ClusterError(f"SM_CURRENT_HOST must be one that trains ({', '.join(hosts)}). Received: {own!r}")
    return str(hosts.index(own)) if hosts else ""


def read_determined(environ: Environ) -> dict[str, Any]:
    """Return the place of a trial's container, which Determined writes into a file before the program starts."""
    if "DET_TRIAL_ID" in environ:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(Path(_RENDEZVOUS).read_text())
            return found if isinstance(found, dict) else {}
    return {}


def read_ray(environ: Environ) -> tuple[str, str] | None:
    """Return the rank and the size of a worker of Ray Train, "" in Ray's other workers; None outside of them."""
    ray = sys.modules.get("ray")
    if "RAY_RAYLET_PID" not in environ or ray is None or not ray.is_initialized():
        return None
    with contextlib.suppress(ImportError, RuntimeError, DeprecationWarning):  # a task, a trial
        context = ray.train.get_context()
        return str(context.get_world_rank()), str(context.get_world_size())
    return "", ""


def list_vertex_machines(environ: Environ) -> list[str]:
    """Return the machines that train."""
    spec = _read_json(environ, "CLUSTER_SPEC")
    pools = spec.get("cluster") if isinstance(spec, dict) else None
    pools = pools if isinstance(pools, dict) else {}  # something else may have this name
    return [machine for name in _POOLS for machine in pools.get(name, ())]


def find_vertex_rank(environ: Environ) -> str:
    """Return this machine's place among those that train."""
    if not (machines := list_vertex_machines(environ)):
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


def find_pod_rank(environ: Environ) -> str:
    """Return the number of a pod among those of an Indexed Job, or of all jobs of a JobSet."""
    names = ("JOB_COMPLETION_INDEX", "JOB_INDEX", "PROCESSES_IN_JOB")
    index, job, pods = (environ.get(name) or "0" for name in names)
    whole = names[0] in environ and all(map(str.isdecimal, (index, job, pods)))
    if whole and int(job) and not int(pods):
        raise ClusterError(
            f"JOB_INDEX={job} needs PROCESSES_IN_JOB, the number of pods of each job of the JobSet."
        )
    return str(int(job) * int(pods) + int(index)) if whole else ""


def find_pod_host(environ: Environ) -> str:
    """Return the name of the first pod of a JobSet whose names the pod was given."""
    job_set, job = environ.get("JOBSET_NAME"), environ.get("REPLICATED_JOB_NAME")
    return f"{job_set}-{job}-0-0.{job_set}" if job_set and job else ""
