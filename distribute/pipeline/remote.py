"""Stages in other processes: TensorFlow's gRPC runtime runs operations of a graph on their devices."""

import atexit
import ipaddress
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..environment import STAGES, peer_timeout, stage_addresses
from ..workers.addresses import connect as connect_to
from ..workers.addresses import free_ports, join_address, split_address
from ..workers.server_watch import ServerWatch, answers
from ..workers.ticker import run_in_time

JOB = "worker"
_LOCAL = "localhost"
_JOINING = 10.0  # seconds beyond the timeout, until when a silent process has been noticed

_watch: ServerWatch | None = None


class StageError(RuntimeError):
    """The process of a stage has died or hangs: training cannot continue. A restart continues from the last backup."""


def connect(addresses: Sequence[str] | None = None, timeout: float | None = None) -> list[str]:
    """Connect this process to the devices of other processes, and watch these processes from now on.

    In the script the K - 1 serving processes of `launch --stages K` are `/job:worker/task:1` to `/job:worker/task:K-1`;
    local devices belong to stage 0.

    Args:
        addresses: "host:port" of each serving process (`python -m unisono.distribute.server`), stage 1's first;
            None: the addresses from the launcher.
        timeout: seconds to wait for all of them together, and later seconds without an answer after which a process
            is lost; None: UNISONO_TIMEOUT, or 60.

    Returns:
        One device for each stage, this process's first: its GPU if it has one, else its CPU.

    Raises:
        ValueError: there are no addresses, or others have been connected before.
        TimeoutError: a process does not answer in time.
        StageError: a process is lost while it is connected.

    Context: host, before the first step.
    """
    global _watch
    given = list(addresses) if addresses is not None else stage_addresses()
    if not given:
        raise ValueError(
            f"`addresses` must name at least one process: start the script with `python -m unisono launch --stages K`. "
            f"Received: {addresses!r}, and {STAGES} is not set"
        )
    known = [] if _watch is None else list(_watch.addresses.values())
    if known and given != known:
        raise ValueError(f"`addresses` must not change in a process: they were {known}. Received: {given}")
    if _watch is None:
        seconds = peer_timeout() if timeout is None else timeout
        deadline = time.monotonic() + seconds
        for address in given:
            _wait_for(address, deadline, seconds)
        watch = ServerWatch(dict(enumerate(given, start=1)), seconds)
        watch.start()
        atexit.register(watch.stop)
        _join(watch, given)
        _watch = watch
    return [_best_device(task) for task in range(len(given) + 1)]


def _join(watch: ServerWatch, addresses: Sequence[str]) -> None:
    """Let TensorFlow join the cluster in a thread, as it would wait forever for a process that is lost meanwhile."""
    cluster: dict[str, Any] = {JOB: watch.addresses, _LOCAL: [own_address(addresses)]}

    def join() -> None:
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster))
        tf.config.list_logical_devices()

    try:
        if not run_in_time("connect", join, watch.timeout + _JOINING):
            raise TimeoutError(
                f"The stages at {list(addresses)} could not be reached within {watch.timeout:g} s: check that they run."
            )
    except Exception as error:
        _raise_if_lost(watch, error, {task: [task] for task in watch.addresses})
        raise


def connect_if_launched(devices: Any) -> None:
    """Connect if devices name other processes and the launcher has started them."""
    remote = isinstance(devices, list | tuple) and any("/job:" in str(name) for name in devices)
    if remote and stage_addresses() and _watch is None:
        connect()


def raise_if_lost(cause: Exception, devices: Sequence[str], stages: int) -> None:
    """Raise a `StageError` that names the stage and its address, if one of `stages` stages is lost; return otherwise."""
    if _watch is None or not isinstance(cause, tf.errors.OpError):
        return
    stages_of: dict[int, list[int]] = {}
    for index, device in enumerate(devices):
        spec = tf.DeviceSpec.from_string(device)
        if spec.job == JOB and index % stages not in stages_of.setdefault(int(spec.task or 0), []):
            stages_of[int(spec.task or 0)].append(index % stages)
    _raise_if_lost(_watch, cause, stages_of)


def _raise_if_lost(watch: ServerWatch, cause: Exception, stages_of: dict[int, list[int]]) -> None:
    lost = watch.find_lost()
    if isinstance(cause, tf.errors.UnavailableError | tf.errors.AbortedError):
        # A server that was restarted in the meantime answers, but does not know this training run.
        again = "has lost its connection: it may have died and been started again"
        message: str = cause.message  # pyright: ignore[reportAttributeAccessIssue]
        blamed = [task for task in stages_of if f"/job:{JOB}/replica:0/task:{task}" in message]
        lost = {**dict.fromkeys(blamed, again), **lost}
    said = [
        f"stage {' and '.join(map(str, stages_of[task]))} at {watch.addresses[task]} (/job:{JOB}/task:{task}) {what}"
        for task, what in lost.items()
        if task in stages_of
    ]
    if said:
        raise StageError(
            f"{'; '.join(said)}. Restart all stages: a fit with `BackupAndRestore` then continues from the last backup."
        ) from cause


def own_address(addresses: Sequence[str]) -> str:
    """Return the address at which these processes reach this one: a free port, on the interface towards other machines.

    TensorFlow itself would send them "localhost", which means another machine there.
    """
    hosts = []
    for address in addresses:
        with connect_to(address, 10.0) as connection:
            hosts.append(str(connection.getsockname()[0]))
    (port,) = free_ports(1)
    host = next((host for host in hosts if not ipaddress.ip_address(host).is_loopback), hosts[0])
    return join_address(host, port)


def _wait_for(address: str, deadline: float, timeout: float) -> None:
    split_address(address)  # raises ValueError for an invalid one
    while not answers(address, max(0.1, deadline - time.monotonic())):
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"No stage answers at {address!r} within {timeout:g} s: "
                f"check that `python -m unisono.distribute.server` runs there."
            )
        time.sleep(0.1)


def _best_device(task: int) -> str:
    """Return the GPU of a task, else its CPU; task 0 is this process."""
    specs = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices()]
    mine = [s for s in specs if (s.job == JOB and s.task == task if task else s.job in (None, _LOCAL))]
    return min(mine, key=lambda spec: (spec.device_type != "GPU", spec.device_type != "CPU")).to_string()
