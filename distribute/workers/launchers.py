"""The table of launchers: the variables with which each tells a process its rank, their number, and where rank 0 is."""

from collections.abc import Callable
from typing import NamedTuple

from ..environment import ENDPOINT, RANK, SIZE
from .launcher_variables import (
    Environ,
    find_blaunch_rank,
    find_lsf_host,
    find_mpi_host,
    find_nomad_rank,
    find_pbs_rank,
    find_pmix_size,
    find_pod_host,
    find_pod_rank,
    find_sagemaker_rank,
    find_slurm_host,
    find_slurm_rank,
    find_slurm_size,
    find_vertex_rank,
    list_vertex_machines,
    read_determined,
    read_ray,
    read_sagemaker,
)

LEVELS = ("cluster", "process", "task", "node")  # what a launcher numbers; the innermost comes first
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
    # the PMIx standard, PMIx_Init; before the launchers that use it, which say more
    Launcher("PMIx", "process", "PMIX_RANK", find_pmix_size, job="PMIX_NAMESPACE"),
    # docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    Launcher("mpirun", "process", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", find_mpi_host,
             "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE OMPI_MCA_ess_base_jobid"),
    # Hydra of MPICH and of Intel MPI (PMI_ID with -pmi-port); Cray's PALS, and ALPS (aprun)
    Launcher("mpirun", "process", "PMI_RANK PMI_ID PALS_RANKID ALPS_APP_PE", "PMI_SIZE", find_mpi_host,
             "MPI_LOCALNRANKS PMI_LOCAL_SIZE"),
    # the guides of MVAPICH2 and MVAPICH 3, parameters of mpirun_rsh
    Launcher("mpirun", "process", "MV2_COMM_WORLD_RANK MVP_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE MVP_COMM_WORLD_SIZE", "",
             "MV2_COMM_WORLD_LOCAL_SIZE MVP_COMM_WORLD_LOCAL_SIZE"),
    # horovod.readthedocs.io: horovodrun, Ray and Spark
    Launcher("horovodrun", "process", "HOROVOD_RANK", "HOROVOD_SIZE", "", "HOROVOD_LOCAL_SIZE"),
    # slurm.schedmd.com/srun.html, output environment variables
    Launcher("srun", "task", find_slurm_rank, find_slurm_size, find_slurm_host,
             job="SLURM_JOB_ID SLURM_STEP_ID SLURM_RESTART_COUNT"),
    # flux-framework.readthedocs.io, flux-environment(7)
    Launcher("Flux", "task", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "",
             lambda e: e.get("FLUX_JOB_SIZE", "") if e.get("FLUX_JOB_NNODES") == "1" else "", "FLUX_JOB_ID"),
    # pbsdsh of OpenPBS and of Torque, which numbers by PBS_VNODENUM where a node has several tasks
    Launcher("pbsdsh", "task", find_pbs_rank, "", job="PBS_JOBID"),
    # IBM's Job Step Manager under LSF, as in Lightning's LSFEnvironment
    Launcher("jsrun", "task", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", find_lsf_host, job="LSB_JOBID"),
    # LSF's blaunch, as in PRRTE's src/mca/ess/lsf; with -z it starts fewer tasks than LSB_DJOB_NUMPROC says
    Launcher("blaunch", "task", find_blaunch_rank, "", "LSB_HOSTS", job="LSB_JOBID"),
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
    Launcher("SageMaker", "node", find_sagemaker_rank, lambda e: str(len(read_sagemaker(e)[0])),
             lambda e: ",".join(read_sagemaker(e)[0]), job="TRAINING_JOB_NAME"),
    # cloud.google.com/vertex-ai/docs/training/distributed-training, CLUSTER_SPEC
    Launcher("Vertex AI", "node", find_vertex_rank, lambda e: str(len(list_vertex_machines(e))),
             lambda e: ",".join(list_vertex_machines(e)), job="CLOUD_ML_JOB_ID"),
    # kubernetes.io/docs/concepts/workloads/controllers/job; JobSet's names by the downward API, as in its examples
    Launcher("Kubernetes", "node", find_pod_rank, "", find_pod_host, job="JOBSET_NAME REPLICATED_JOB_NAME"),
    # lws.sigs.k8s.io, the variables of its pods
    Launcher("LeaderWorkerSet", "node", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS",
             job="LWS_LEADER_ADDRESS"),
    # volcano.sh: its env plugin numbers the pods of each task; its plugins for TensorFlow and PyTorch say more
    Launcher("Volcano", "node", "VC_TASK_INDEX VK_TASK_INDEX", ""),
    # docs.aws.amazon.com/batch, multi-node parallel jobs; the main node does not get its own address
    Launcher("AWS Batch", "node", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"),
    # developer.hashicorp.com/nomad/docs/reference/runtime-environment-settings
    Launcher("Nomad", "node", find_nomad_rank, "", job="NOMAD_JOB_ID"),
    # docs.determined.ai, ClusterInfo, without one of its launch layers
    Launcher("Determined", "node", lambda e: str(read_determined(e).get("container_rank", "")),
             lambda e: str(len(read_determined(e).get("container_addrs", ()))),
             lambda e: ",".join(read_determined(e).get("container_addrs", ())), job="DET_ALLOCATION_ID"),
    # cloud.google.com/batch/docs, jobs with `requireHostsFile`; without it tasks are independent
    Launcher("Batch", "node", lambda e: e.get("BATCH_TASK_INDEX", "") if "BATCH_HOSTS_FILE" in e else "",
             lambda e: e.get("BATCH_TASK_COUNT", "") if "BATCH_HOSTS_FILE" in e else ""),
    # beaker-docs.apps.allenai.org, replicated tasks with a leader
    Launcher("Beaker", "node", "BEAKER_REPLICA_RANK", "BEAKER_REPLICA_COUNT", "BEAKER_LEADER_REPLICA_HOSTNAME",
             job="BEAKER_JOB_ID"),
]
# docs.ray.io: its workers inherit the variables of whatever started the node, which number the nodes
_RAY = Launcher("Ray Train", "process", lambda e: (read_ray(e) or ("",))[0], lambda e: (read_ray(e) or ("", ""))[1])
# fmt: on


def list_launchers(environ: Environ) -> list[Launcher]:
    """Return the launchers that may have numbered this process: in a worker of Ray only Ray."""
    return TABLE if read_ray(environ) is None else [_RAY]


def register_launcher(
    name: str, rank: Column, size: Column, host: Column = "", *, level: str = "process", job: str = ""
) -> None:
    """Add a launcher whose processes `auto_strategy()` joins, or replace the launcher of this name.

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
