"""The tasks of `launch`: the processes of one cluster on this machine, each with its command and its environment."""

import dataclasses
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence

from .. import environment
from ..workers.addresses import LOOPBACK, free_ports, join_address
from ..workers.error_text import LEADER
from . import gpus

_SERVER = (sys.executable, "-u", "-m", "unisono.distribute.server")


@dataclasses.dataclass(frozen=True)
class RequestedCluster:
    """The requested cluster."""

    workers: int = 1  # training processes
    replicas_per_worker: int | None = None  # None: one for each GPU of the worker, else one
    # With any, the script runs on the coordinator alone, which sends steps to the workers.
    parameter_servers: int = 0
    stages: int = 1  # of the pipeline; each process that runs the script gets `stages - 1` helpers
    timeout: float = environment.DEFAULT_TIMEOUT  # seconds after which a lost peer is an error
    nnodes: int = 1  # machines, with a launcher on each
    node_rank: int = 0  # of this machine
    endpoint: str = ""  # "host:port" of worker 0, where the workers of several machines meet
    fewest_nodes: int = 0  # of an elastic launch, in which `nnodes` is the most; 0: it is not elastic


@dataclasses.dataclass(frozen=True)
class Task:
    """One process to start."""

    name: str  # as in logs, for instance `worker-0`
    command: tuple[str, ...]  # program and arguments
    env: Mapping[str, str]  # variables set in addition to those of the launcher
    # "script": the cluster is done when all of these are. "server": ends with the scripts, not before. "spare": a server
    # that the scripts can lose; it is restarted alone.
    role: str = "script"
    aliases: frozenset[str] = frozenset()  # its names in the errors of others: its address, "worker 0"


def _run_of(layout: RequestedCluster) -> str:
    """Return the run that the user has named, and the attempt; of launchers on several machines all attempts are one."""
    given = os.environ.get(environment.RUN)
    if layout.nnodes > 1:
        return given or f"launch at {layout.endpoint}"
    return f"{given}/{secrets.token_hex(8)}" if given else secrets.token_hex(8)


def plan(layout: RequestedCluster, script: Sequence[str]) -> list[Task]:
    """Return the processes of one attempt, with fresh ports; raise a ValueError if the machine's GPUs are too few."""
    common = {
        "PYTHONUNBUFFERED": "1",
        environment.TIMEOUT: f"{layout.timeout:g}",
        environment.RUN: _run_of(layout),
    }
    if layout.replicas_per_worker is not None:
        common[environment.REPLICAS_PER_WORKER] = str(layout.replicas_per_worker)
    workers, stages, machine = layout.workers, layout.stages, secrets.token_hex(8)
    addresses = _addresses(workers + (1 + layout.parameter_servers if layout.parameter_servers else 0))
    cluster = {"worker": addresses[:workers]}

    def task(kind: str, index: int, variables: Mapping[str, str], role: str) -> Task:
        env = {**common, **variables, "TF_CONFIG": _tf_config(cluster, kind, index)}
        leads = role == "script" and (kind, index) == ("worker", 0)
        aliases = {cluster[kind][index], f"{kind} {index}"} | ({LEADER} if leads else set())
        command = (sys.executable, "-u", *script) if role == "script" else _SERVER
        return Task("chief" if kind == "chief" else f"{kind}-{index}", command, env, role, frozenset(aliases))

    if layout.parameter_servers:
        cluster |= {"chief": addresses[workers : workers + 1], "ps": addresses[workers + 1 :]}
        no_gpu, places = {"CUDA_VISIBLE_DEVICES": ""}, _gpus_of_processes(layout, workers)
        return [
            *(task("ps", i, no_gpu, "server") for i in range(layout.parameter_servers)),
            *(task("worker", i, place, "spare") for i, place in enumerate(places)),
            *_with_stages(task("chief", 0, no_gpu, "script"), [no_gpu] * (stages - 1)),
        ]
    places, tasks = _gpus_of_processes(layout, workers * stages), []
    for i in range(workers):
        own, *of_stages = places[i * stages : (i + 1) * stages]
        if layout.nnodes > 1:
            worker = _among_machines(layout, i, common | own, script, machine)
        else:
            worker = task("worker", i, own, "script")
        tasks += _with_stages(worker, of_stages)
    return tasks


def _among_machines(
    layout: RequestedCluster, index: int, env: Mapping[str, str], script: Sequence[str], machine: str
) -> Task:
    """Return a worker that meets those of other machines at the endpoint, and gets TF_CONFIG there."""
    rank, name = layout.node_rank * layout.workers + index, "worker"
    place = {
        environment.RANK: str(rank),
        environment.SIZE: str(layout.nnodes * layout.workers),
        environment.ENDPOINT: layout.endpoint,
    }
    aliases = {f"worker {rank}"} | ({LEADER} if rank == 0 else set())
    if layout.fewest_nodes:
        words = layout.fewest_nodes * layout.workers, layout.workers, machine
        place[environment.ELASTIC] = " ".join(map(str, words))
        rank, name, aliases = index, "process", aliases if rank == 0 else set()
    command = (sys.executable, "-u", *script)
    return Task(f"{name}-{rank}", command, {**env, **place}, "script", frozenset(aliases))


def _with_stages(task: Task, places: Sequence[Mapping[str, str]]) -> list[Task]:
    """Return `task` after the helper processes of its pipeline's later stages, each with separate GPUs."""
    if not places:
        return [task]
    addresses = _addresses(len(places))
    helpers = [
        Task(
            f"{task.name}-stage-{index + 1}",
            _SERVER,
            {**task.env, **variables, "TF_CONFIG": _tf_config({"stage": addresses}, "stage", index)},
            "server",
            frozenset({addresses[index]}),
        )
        for index, variables in enumerate(places)
    ]
    env = dict(task.env) | {environment.STAGES: ",".join(addresses)}
    return [*helpers, dataclasses.replace(task, env=env)]


def _addresses(count: int) -> list[str]:
    return [join_address(LOOPBACK, port) for port in free_ports(count)]


def _tf_config(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def _gpus_of_processes(layout: RequestedCluster, processes: int) -> list[dict[str, str]]:
    """Return the variables that make its GPUs visible to each computing process, worker after worker."""
    of_machine = gpus.read_gpus()
    if not (names := gpus.visible(of_machine)):
        return [{}] * processes
    each = layout.replicas_per_worker or len(names) // processes
    if each * processes > len(names) or not each:
        lost = sum(bool(gpu.lost) for gpu in of_machine)
        are = "is" if lost == 1 else "are"
        also = f", {lost} more {are} lost (python -m unisono doctor says which)" * bool(lost)
        stages = f" * stages ({layout.stages})" if processes > layout.workers else ""
        raise ValueError(
            f"workers ({layout.workers}){stages} * replicas per worker ({max(each, 1)}) must not be more than the "
            f"visible GPUs ({len(names)}{also}): ask for fewer, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
        )
    # Idle GPUs were listed first; those of one worker are neighbours, where the names are the machine's own numbers.
    chosen = "CUDA_VISIBLE_DEVICES" in os.environ
    order = names if chosen or not of_machine else [gpu.index for gpu in of_machine]
    used = sorted(names[: each * processes], key=order.index)
    alone = layout.nnodes == 1
    return [gpus.environment_of(used[i * each : (i + 1) * each], alone) for i in range(processes)]
