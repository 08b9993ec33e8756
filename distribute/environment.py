"""The environment variables with which `python -m unisono launch` configures a process. Needs no TensorFlow."""

from __future__ import annotations

import os

TIMEOUT = "UNISONO_TIMEOUT"
REPLICAS_PER_WORKER = "UNISONO_REPLICAS_PER_WORKER"
STAGES = "UNISONO_STAGES"
RESTART = "UNISONO_RESTART"
RECORDS = "UNISONO_RECORDS"
RUN = "UNISONO_RUN"

DEFAULT_TIMEOUT = 60.0
LONGEST_TIMEOUT = 1e6  # 11 days; longer waits overflow system timers


def peer_timeout() -> float:
    """Seconds after which a peer that died, hangs or never came is an error: UNISONO_TIMEOUT, or 60.

    Raises:
        ValueError: the variable is not a number from 1 to 1,000,000.
    """
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
    """Replicas that a worker without accelerators has: UNISONO_REPLICAS_PER_WORKER, or 1.

    Raises:
        ValueError: the variable is not a whole number of at least 1.
    """
    text = os.environ.get(REPLICAS_PER_WORKER) or "1"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{REPLICAS_PER_WORKER} must be a whole number of at least 1. Received: {text!r}")
    return int(text)


def stage_addresses() -> list[str]:
    """Addresses of the processes with a pipeline's later stages; empty if the launcher started none."""
    return [address for address in os.environ.get(STAGES, "").split(",") if address]
