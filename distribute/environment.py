"""The environment variables with which `python -m unisono launch` or another launcher starts a process."""

import os
import re
from collections.abc import Mapping

TIMEOUT = "UNISONO_TIMEOUT"
REPLICAS_PER_WORKER = "UNISONO_REPLICAS_PER_WORKER"
STAGES = "UNISONO_STAGES"
RESTART = "UNISONO_RESTART"
RECORDS = "UNISONO_RECORDS"
RUN = "UNISONO_RUN"
# The place of a worker that `launch` started on one of several machines, and where all of them meet.
RANK, SIZE, ENDPOINT = "UNISONO_RANK", "UNISONO_SIZE", "UNISONO_ENDPOINT"
ELASTIC = "UNISONO_ELASTIC"  # of `launch --nnodes 1:4`: the fewest workers, those of a machine, and a name of this one
SINCE = "UNISONO_SINCE"  # the time at which an elastic launch lost its last attempt
# Exit statuses of a worker of an elastic launch: all have saved for a machine that came (ERESTART), and there is no
# place at the endpoint (EX_TEMPFAIL).
REJOIN, NO_PLACE = 85, 75
# Of a program that ends because its backups are damaged, or not those of this run (EX_DATAERR): another attempt cannot help.
WRONG_BACKUPS = 65

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


class ClusterError(ValueError):
    """The description of the cluster is wrong; the message names the mistake and the fix, and no password."""

    def __init__(self, message: str) -> None:
        super().__init__(without_password(message))


def peer_timeout() -> float:
    """Return the seconds after which a peer that died, hangs or never came is an error: UNISONO_TIMEOUT, or 60; checked."""
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
    """Return the replicas of a worker without accelerators: UNISONO_REPLICAS_PER_WORKER, or 1; checked."""
    text = os.environ.get(REPLICAS_PER_WORKER) or "1"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{REPLICAS_PER_WORKER} must be a whole number of at least 1. Received: {text!r}")
    return int(text)


def stage_addresses() -> list[str]:
    """Return the addresses of the processes with a pipeline's later stages; empty if the launcher started none."""
    return [address for address in os.environ.get(STAGES, "").split(",") if address]


def show_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that pages and commands show, without passwords in their values."""
    return {name: without_password(environ[name]) for name in sorted(_SHOWN & environ.keys())}


def without_password(text: str) -> str:
    """Return `text` without the user name and the password of each URL or address in it.

    >>> without_password("https://me:my-key@host/data")
    'https://***@host/data'
    """
    return _PASSWORD.sub("***@", text)
