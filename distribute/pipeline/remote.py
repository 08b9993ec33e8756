"""Stages in other processes: TensorFlow's gRPC runtime runs a graph's operations on their devices.

`python -m unisono launch --stages K script.py` starts K - 1 processes that serve and one that runs the
script, and gives it their addresses. In the script they are `/job:worker/task:1` to `/job:worker/task:K-1`;
what is local is stage 0's.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

ENVIRONMENT = "UNISONO_STAGES"
JOB = "worker"

_connected: list[str] = []


def connect(addresses: Sequence[str] | None = None, timeout: float = 60.0) -> list[str]:
    """Makes the devices of other processes known to this one.

    Args:
        addresses: "host:port" of each process that serves (`python -m unisono.distribute.server`), stage 1's
            first;
            None: those that the launcher gave.
        timeout: seconds to wait for all of them together.

    Returns:
        One device for each stage, this process's first: its GPU if it has one, else its CPU.

    Raises:
        ValueError: if there are no addresses, or others have been connected before.
        TimeoutError: if a process does not answer in time.

    Context: host, before the first step.
    """
    given = list(addresses) if addresses is not None else addresses_from_environment()
    if not given:
        raise ValueError(
            f"addresses must name at least one process; received addresses={addresses!r} and no {ENVIRONMENT}: "
            f"start the script with `python -m unisono launch --stages K`"
        )
    if _connected and given != _connected:
        raise ValueError(f"addresses must stay {_connected} in one process; received addresses={given}")
    if not _connected:
        deadline = time.monotonic() + timeout
        for address in given:
            _wait_for(address, deadline, timeout)
        cluster: dict[str, Any] = {JOB: dict(enumerate(given, start=1))}
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster))
        _connected.extend(given)
    return [_best_device(None)] + [_best_device(task) for task in range(1, len(given) + 1)]


def connect_if_launched(devices: Any) -> None:
    """Connects where devices name other processes and the launcher has started them."""
    remote = not isinstance(devices, str) and any("/job:" in str(name) for name in devices or ())
    if remote and addresses_from_environment() and not _connected:
        connect()


def addresses_from_environment() -> list[str]:
    """The addresses that the launcher gave; empty if it did not start this process."""
    return [address for address in os.environ.get(ENVIRONMENT, "").split(",") if address]


def _wait_for(address: str, deadline: float, timeout: float) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=max(0.1, deadline - time.monotonic())):
                return
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) or time.monotonic() >= deadline:
                raise TimeoutError(
                    f"no stage answers at {address!r} within {timeout:g} s: "
                    f"is `python -m unisono.distribute.server` running there?"
                ) from error
            time.sleep(0.1)


def _best_device(task: int | None) -> str:
    specs = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices()]
    if task is None:
        mine = [spec for spec in specs if spec.job in (None, "localhost")]
    else:
        mine = [spec for spec in specs if spec.job == JOB and spec.task == task]
    best = sorted(mine, key=lambda spec: (spec.device_type != "GPU", spec.device_type != "CPU"))[0]
    return best.to_string()
