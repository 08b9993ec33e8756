"""The environment variables with which `python -m unisono launch` or another launcher starts a process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

TIMEOUT = "UNISONO_TIMEOUT"
REPLICAS_PER_WORKER = "UNISONO_REPLICAS_PER_WORKER"
STAGES = "UNISONO_STAGES"
RESTART = "UNISONO_RESTART"
RECORDS = "UNISONO_RECORDS"
RUN = "UNISONO_RUN"

DEFAULT_TIMEOUT = 60.0
LONGEST_TIMEOUT = 1e6  # 11 days; longer waits overflow system timers
# The environment variables that pages and commands show. Others may hold passwords, whatever their names begin with.
_SHOWN = frozenset(
    """
    CUDA_VISIBLE_DEVICES KERAS_BACKEND NCCL_ALGO NCCL_DEBUG NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_PROTO NCCL_SOCKET_IFNAME
    OMP_NUM_THREADS TF_CPP_MIN_LOG_LEVEL TF_CUDNN_DETERMINISTIC TF_DETERMINISTIC_OPS TF_ENABLE_ONEDNN_OPTS
    TF_FORCE_GPU_ALLOW_GROWTH TF_GPU_ALLOCATOR TF_GPU_THREAD_COUNT TF_GPU_THREAD_MODE TF_NUM_INTEROP_THREADS
    TF_NUM_INTRAOP_THREADS TF_USE_LEGACY_KERAS TF_XLA_FLAGS UNISONO_REPLICAS_PER_WORKER UNISONO_RESTART UNISONO_TIMEOUT
    XLA_FLAGS
    """.split()  # noqa: SIM905
)
_PASSWORD = re.compile(r"""(?<=//)[^\s/'"]+@|[^\s/:'"]+:[^\s/'"]+@""")  # of a URL or an address
# The launcher, and its variables for the number of tasks and the number of this task.
_SLURM_STEP, _SLURM_JOB = "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"
_LAUNCHERS = (
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("mpirun", "PMI_SIZE", "PMI_RANK"),
    ("torchrun", "WORLD_SIZE", "RANK"),
    ("srun", _SLURM_STEP, "SLURM_PROCID"),
    ("srun", _SLURM_JOB, "SLURM_PROCID"),
)


class LaunchedTask(NamedTuple):
    """This process as one of several that a launcher has started without TF_CONFIG."""

    launcher: str
    size_name: str
    rank_name: str
    size: int
    rank: int

    @property
    def of_job_step(self) -> bool:
        """Whether Slurm's variables describe the tasks, so that they can form a cluster."""
        return self.size_name == _SLURM_STEP

    def __str__(self) -> str:
        """The problem and the fix."""
        return (
            f"{self.launcher} started this process as task {self.rank} of {self.size} ({self.rank_name}={self.rank}, "
            f"{self.size_name}={self.size}) without TF_CONFIG, so each task trains a separate model: "
            + (
                "create the model under unisono.distribute.auto_strategy()"
                if self.of_job_step
                else f"use `python -m unisono launch --workers {self.size}` instead, or set TF_CONFIG for each task"
            )
            + "; set TF_CONFIG={} if the models are meant to be independent."
        )


def peer_timeout() -> float:
    """Seconds after which a peer that died, hangs or never came is an error: UNISONO_TIMEOUT, or 60; checked."""
    text = os.environ.get(TIMEOUT) or str(DEFAULT_TIMEOUT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= LONGEST_TIMEOUT:
        raise ValueError(
            f"{TIMEOUT} must be a number of seconds from 1 to {LONGEST_TIMEOUT:,.0f}. Received: {text!r}. "
            f"Set it to such a number, or unset it for {DEFAULT_TIMEOUT:g} s."
        )
    return seconds


def replicas_per_worker() -> int:
    """Replicas that a worker without accelerators has: UNISONO_REPLICAS_PER_WORKER, or 1; checked."""
    text = os.environ.get(REPLICAS_PER_WORKER) or "1"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{REPLICAS_PER_WORKER} must be a whole number of at least 1. Received: {text!r}")
    return int(text)


def stage_addresses() -> list[str]:
    """Addresses of the processes with a pipeline's later stages; empty if the launcher started none."""
    return [address for address in os.environ.get(STAGES, "").split(",") if address]


def shown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that pages and commands show, without passwords in their values."""
    return {name: without_password(environ[name]) for name in sorted(_SHOWN & environ.keys())}


def without_password(text: str) -> str:
    """`text` without the user name and the password of each URL or address in it.

    >>> without_password("https://me:my-key@host/data")
    'https://***@host/data'
    """
    return _PASSWORD.sub("***@", text)


def launched_task(environ: Mapping[str, str] | None = None) -> LaunchedTask | None:
    """The launcher that started this process as one of several without TF_CONFIG; None: it was started alone.

    `srun` counts only where no other launcher is found, or with other numbers.
    """
    environ = os.environ if environ is None else environ
    if "TF_CONFIG" in environ:
        return None
    found = []
    for launcher, size_name, rank_name in _LAUNCHERS:
        size, rank = environ.get(size_name, ""), environ.get(rank_name, "")
        # A script under `sbatch` has the variables of task 0, and may be the only process.
        lone = size_name == _SLURM_JOB and (rank == "0" or _SLURM_STEP in environ)
        numbers = all(text.isdecimal() and len(text) < 10 for text in (size, rank))
        if numbers and int(rank) < int(size) > 1 and not lone:
            found.append(LaunchedTask(launcher, size_name, rank_name, int(size), int(rank)))
    slurm = [task for task in found if task.launcher == "srun"]
    same = len({(task.size, task.rank) for task in found}) == 1
    return next(
        iter(slurm if same and slurm else [task for task in found if task not in slurm] or slurm), None
    )
