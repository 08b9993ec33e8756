"""The cluster of this process, read from TF_CONFIG and checked. Reading it needs no TensorFlow."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from ..environment import ClusterError as ClusterError
from .addresses import LOOPBACK, split_address
from .error_text import LEADER, Blame
from .places import read_place

JOBS = ("chief", "worker", "ps", "evaluator", "stage")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """All processes that train together, and the position of this process among them."""

    jobs: Mapping[str, tuple[str, ...]]  # task type -> addresses "host:port" in the order of the task indices
    task_type: str  # "chief", "worker", "ps", "evaluator" or "stage"
    task_index: int  # counted from 0 within the task type

    @property
    def address(self) -> str:
        """The "host:port" at which this process must listen."""
        return self.jobs[self.task_type][self.task_index]

    @property
    def has_parameter_servers(self) -> bool:
        """Whether training is asynchronous, with variables on parameter servers."""
        return bool(self.jobs.get("ps"))

    @property
    def workers(self) -> tuple[str, ...]:
        """Addresses of the processes that train synchronously, chief first."""
        return (*self.jobs.get("chief", ()), *self.jobs.get("worker", ()))

    @property
    def num_workers(self) -> int:
        """Training processes: with parameter servers those that compute steps, else all that train together."""
        return len(self.jobs.get("worker", ())) if self.has_parameter_servers else len(self.workers)

    @property
    def trains_together(self) -> bool:
        """Whether this process is one of several that train one model synchronously."""
        return len(self.workers) > 1 and self.address in self.workers and not self.has_parameter_servers

    @property
    def worker_index(self) -> int:
        """This worker's number, 0 to `num_workers - 1`; the chief is 0."""
        if self.task_type == "worker" and not self.has_parameter_servers:
            return self.task_index + len(self.jobs.get("chief", ()))
        return self.task_index

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files, logs and the progress bar: the chief, worker 0 without one, or an evaluator."""
        return self.address in self.workers[:1] or self.task_type == "evaluator"


def find_hosts(blame: Blame | None) -> str:
    """Say where blamed processes are: "lost contact: worker 1 is at 10.0.0.2:4000"; "" if all are on this machine."""
    names = (*blame.lost, *blame.reported_by) if blame else ()
    cluster = None
    with contextlib.suppress(ClusterError):
        cluster = read_cluster()
    jobs = cluster.jobs if cluster is not None else {}
    places = {f"{job} {i}": address for job, addresses in jobs.items() for i, address in enumerate(addresses)}
    named = dict.fromkeys("worker 0" if name == LEADER else name for name in names)
    elsewhere = [name for name in named if not places.get(name, LOOPBACK).startswith(LOOPBACK)]
    said = ", ".join(f"{name} is at {places[name]}" for name in elsewhere)
    return f"lost contact: {said}" if said and blame and blame.lost else said


def cluster_of(resolver: Any) -> Cluster | None:
    """Return the cluster that a strategy's resolver describes; None if it names none."""
    if resolver is None or resolver.task_type is None:
        return None
    jobs = {kind: tuple(tasks) for kind, tasks in resolver.cluster_spec().as_dict().items()}
    kind = resolver.task_type
    return Cluster(jobs, kind, int(resolver.task_id or 0)) if kind in jobs else None


def read_cluster(environ: Mapping[str, str] | None = None) -> Cluster | None:
    """Read the cluster in TF_CONFIG, by default this process's; None if it names none. A mistake is a `ClusterError`."""
    text = (os.environ if environ is None else environ).get("TF_CONFIG")
    if text is None:
        return None
    if not text.strip():
        raise ClusterError("TF_CONFIG is set but empty: unset it, or describe the cluster in it.")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"is not JSON ({error})", text) from None
    if not isinstance(config, dict):
        raise _wrong("must be a JSON object with 'cluster' and 'task'", text)
    if config == {}:
        return None
    if "sparseCluster" in config:
        raise _wrong(
            "has a 'sparseCluster', which names only this worker: set enableDynamicWorker of the TFJob to false",
            text,
        )
    if not config.get("cluster"):
        raise _wrong("has no 'cluster': name the addresses of all tasks, or unset it", text)
    if not isinstance(config["cluster"], dict):
        raise _wrong("must have a 'cluster' that maps task types to lists of addresses", config["cluster"])
    config = rename_master(config)
    jobs = {kind: _read_addresses(kind, addresses) for kind, addresses in config["cluster"].items()}
    if not (addresses := [address for each in jobs.values() for address in each]):
        raise ClusterError("TF_CONFIG's 'cluster' names no task: add at least one 'worker' address.")
    if len(set(addresses)) < len(addresses):
        twice = max(addresses, key=addresses.count)
        raise ClusterError(f"TF_CONFIG assigns {twice} to two tasks: use a separate address for each.")
    if len(jobs.get("chief", ())) > 1:
        raise ClusterError(f"TF_CONFIG names {len(jobs['chief'])} chiefs: there can be only one.")
    task = config.get("task")
    if isinstance(task, dict) and task.get("type") == "evaluator":
        return _read_evaluator(task, jobs)
    return Cluster(jobs, *_read_task(task, jobs))


def _read_evaluator(task: dict[str, Any], jobs: Mapping[str, tuple[str, ...]]) -> Cluster:
    """Return an evaluator alone, as it takes no part in training; Kubeflow's TFJob does not name it in `cluster`."""
    known = jobs.get("evaluator") or ("localhost:1",)
    kind, index = _read_task({"index": 0, **task}, {"evaluator": known})
    return Cluster({"evaluator": known}, kind, index)


def rename_master(config: dict[str, Any]) -> dict[str, Any]:
    """Return the same without `master`, the former name of the chief."""
    cluster, task = config["cluster"], config.get("task")
    if "master" in cluster and "chief" not in cluster:
        cluster = {"chief" if kind == "master" else kind: tasks for kind, tasks in cluster.items()}
        if isinstance(task, dict) and task.get("type") == "master":
            task = {**task, "type": "chief"}
    return {**config, "cluster": cluster, "task": task}


def _wrong(what: str, received: Any) -> ClusterError:
    text = received if isinstance(received, str) else repr(received)
    return ClusterError(f"TF_CONFIG {what}. Received: {text if len(text) <= 200 else text[:200] + '...'}")


def _read_addresses(kind: str, addresses: Any) -> tuple[str, ...]:
    if kind not in JOBS:
        raise ClusterError(f"TF_CONFIG has the unknown task type {kind!r}: use {', '.join(JOBS[:-1])}.")
    if isinstance(addresses, dict):  # TensorFlow allows {"0": address, "2": address}
        numbers = [*map(str, range(len(addresses)))]
        if addresses.keys() != set(numbers):
            raise _wrong(f"must have {kind!r} with the indices 0 to {len(addresses) - 1}", sorted(addresses))
        addresses = [addresses[number] for number in numbers]
    if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
        raise _wrong(f"has an invalid {kind!r}: it must be a list of addresses 'host:port'", addresses)
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise ClusterError(f"TF_CONFIG's {kind!r} is invalid: {error}") from None
    return tuple(addresses)


def _read_task(task: Any, jobs: Mapping[str, tuple[str, ...]]) -> tuple[str, int]:
    if not isinstance(task, dict) or "type" not in task:
        example = '{"type": "worker", "index": 0}'
        raise _wrong(f"has no 'task': say which task this process is, for instance {example}", task)
    kind = task["type"]
    if not isinstance(kind, str) or not jobs.get(kind):
        raise ClusterError(
            f"TF_CONFIG's task type must be one that its 'cluster' has ({', '.join(sorted(jobs))}). "
            f"Received: {kind!r}"
        )
    index, count = task.get("index", 0 if kind == "chief" else None), len(jobs[kind])
    if str(index) not in map(str, range(count)):
        raise ClusterError(
            f"TF_CONFIG's task index must be a whole number from 0 to {count - 1}, as there are {count} tasks of type "
            f"{kind!r}. Received: {index!r}"
        )
    return kind, int(index)


def _find_place() -> tuple[int, int, bool]:
    """Return this worker's number, how many train together, and whether it is the chief.

    The cluster of the current strategy counts if it spans workers, then TF_CONFIG, then the launcher's variables.
    """
    cluster = None
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        cluster = cluster_of(getattr(tf.distribute.get_strategy(), "cluster_resolver", None))
    cluster = cluster or read_cluster()
    if cluster is not None:
        return cluster.worker_index, max(1, cluster.num_workers), cluster.is_chief
    place = read_place()
    return (0, 1, True) if place is None or place.size is None else (place.rank, place.size, place.rank == 0)


def is_chief() -> bool:
    """Return whether this process writes files, logs and the progress bar; true for a single process.

    Examples:
        >>> if unisono.distribute.is_chief():
        ...     model.save("model.keras")
    """
    return _find_place()[2]


def num_workers() -> int:
    """Return how many processes train together; 1 if the environment and the current strategy name no cluster.

    Examples:
        >>> unisono.distribute.num_workers()
        1
    """
    return _find_place()[1]


def worker_index() -> int:
    """Return this worker's number, 0 to `num_workers() - 1`; the chief's is 0.

    Examples:
        >>> unisono.distribute.worker_index()
        0
    """
    return _find_place()[0]
