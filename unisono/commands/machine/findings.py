"""What `doctor` finds on this machine, GPUs without TensorFlow too: each finding one line, each problem one sentence."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...distribute.environment import launched_task, shown_variables
from ...distribute.launcher.gpus import Gpu, complaint, read_gpus
from ...distribute.workers.addresses import free_ports, listens, split_address, why_taken
from ...distribute.workers.cluster import ClusterError, read_cluster
from ...version import __version__
from .doctor_probe import run_probe

PROBE_SECONDS = 180.0
CONNECT_SECONDS = 2.0
_MOST_BYTES = 1 << 20  # of a file of settings
_LEAST_FREE_BYTES = 2 * 10**9


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was examined."""

    section: str  # "versions", "devices", "precision", "cluster", "ports", "collectives" or "machine"
    name: str
    value: str
    note: str = ""  # what is worth knowing and harms nothing
    problem: str = ""  # what is wrong and how to fix it, in one sentence


def examine(probe_seconds: float = PROBE_SECONDS) -> list[Finding]:
    """Examines everything, in about ten seconds: TensorFlow is started in a process that may take `probe_seconds`."""
    environ = os.environ
    lines, failure = run_probe(environ, probe_seconds)
    return [
        *versions(environ),
        *machine(),
        *devices(lines, failure, environ),
        *driver(complaint()),
        *gpus_of_machine(read_gpus(), environ),
        *precision(lines),
        *cluster(environ),
        *ports(),
        *collectives(lines, failure),
    ]


def versions(environ: Mapping[str, str], requirements: list[str] | None = None) -> Iterator[Finding]:
    """Python and the packages that training needs, compared with the oldest supported ones; and the variant of Keras.

    `requirements`: "name>=version" of the dependencies; None: those that Unisono was installed with.
    """
    yield Finding("versions", "python", platform.python_version())
    yield Finding("versions", "unisono", __version__)
    for requirement in _requirements() if requirements is None else requirements:
        match = re.match(r"([A-Za-z0-9_-]+).*>=\s*([0-9.]+)", requirement)
        if match is None:
            continue
        name, oldest = match.groups()
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("versions", name, "missing", problem=f"Install it: pip install {name}.")
            continue
        old = _numbers(have) < _numbers(oldest)
        yield Finding("versions", name, have, problem=f"Upgrade it: pip install '{name}>={oldest}'." * old)
    backend = environ.get("KERAS_BACKEND") or _configured_backend(environ) or "tensorflow"
    text = "Unisono needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow."
    yield Finding("versions", "Keras backend", backend, problem=text * (backend != "tensorflow"))
    legacy = environ.get("TF_USE_LEGACY_KERAS", "")
    if legacy.lower() in ("1", "true"):
        text = (
            "tf.keras is the legacy tf_keras, whose models Unisono cannot train: unset TF_USE_LEGACY_KERAS."
        )
        yield Finding("versions", "TF_USE_LEGACY_KERAS", legacy, problem=text)


def _requirements() -> list[str]:
    try:
        return [r for r in importlib.metadata.requires("unisono") or [] if "extra ==" not in r]
    except importlib.metadata.PackageNotFoundError:
        return ["tensorflow>=2.20", "keras>=3.15", "numpy>=1.26"]


def _numbers(version: str) -> tuple[int, ...]:
    """The release as numbers: "2.21.0rc1" -> (2, 21, 0)."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _configured_backend(environ: Mapping[str, str]) -> str | None:
    home = environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    from ...distribute.storage import open_plain  # imports NumPy, which `--help` need not wait for

    try:
        with open_plain(Path(home, "keras.json")) as stream:
            backend = json.loads(stream.read(_MOST_BYTES)).get("backend")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return backend if isinstance(backend, str) else None


def machine() -> list[Finding]:
    """Cores and free disk space."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = shutil.disk_usage(".").free
    text = "Free some space, or write backups elsewhere: a write that does not fit fails."
    return [
        Finding("machine", "system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        Finding("machine", "CPU cores", str(cores)),
        Finding("machine", "free disk", f"{free / 1e9:.1f} GB", problem=text * (free < _LEAST_FREE_BYTES)),
    ]


def devices(lines: list[dict[str, Any]], failure: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What TensorFlow can compute on."""
    if not lines:
        yield Finding("devices", "TensorFlow", "fails", problem=f"TensorFlow does not start: {failure}.")
        return
    found = lines[0]
    yield from (Finding("devices", "GPU", name) for name in found["gpus"])
    if found["tpus"]:
        yield Finding("devices", "TPU cores", str(found["tpus"]))
    if found["gpus"]:
        return
    note = problem = ""
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    if Path("/dev/nvidia0").exists() and hidden in ("", "-1"):
        note = f"There is an NVIDIA GPU, hidden by CUDA_VISIBLE_DEVICES={hidden!r}: unset it to use the GPU."
    elif Path("/dev/nvidia0").exists():
        why = "TensorFlow cannot load CUDA" if found["built_with_cuda"] else "this TensorFlow has no CUDA"
        problem = f"There is an NVIDIA GPU, but {why}: pip install 'tensorflow[and-cuda]'."
    yield Finding("devices", "GPU", "none: training runs on the CPU", note, problem)


def driver(said: str) -> list[Finding]:
    """A driver that lists no GPU; `said` is its message, empty without a problem."""
    text = "Install the driver again, or restart the machine after an upgrade: until then everything runs on the CPU."
    return [Finding("devices", "nvidia-smi", said, problem=text)] if said else []


def gpus_of_machine(gpus: list[Gpu], environ: Mapping[str, str]) -> Iterator[Finding]:
    """What the NVIDIA driver reports of each GPU: its model, and whether it is busy or lost."""
    for gpu in gpus:
        name = f"GPU {gpu.index or gpu.bus or '?'}"
        if gpu.lost:
            text = "The GPU is lost: reset it (nvidia-smi --gpu-reset), or restart the machine; launch leaves it out."
            yield Finding("devices", name, gpu.lost, problem=text)
            continue
        memory = f"{gpu.total} MiB" if gpu.total else ""
        capability = f"capability {gpu.capability}" if gpu.capability else ""
        busy = f"Another program uses it: {gpu.busy}; launch takes idle GPUs first." if gpu.busy else ""
        details = ", ".join(filter(None, (gpu.name, memory, capability)))
        yield Finding("devices", name, details, note=busy)
    models = sorted({gpu.name for gpu in gpus if not gpu.lost})
    if len(models) > 1 and "CUDA_VISIBLE_DEVICES" not in environ:
        text = "Replicas wait for the slowest of them in every step: choose those of one model with CUDA_VISIBLE_DEVICES."
        yield Finding("devices", "models", ", ".join(models), note=text)
    ours = [f"{k}={v}" for k, v in shown_variables(environ).items() if k.startswith("NCCL_")]
    if gpus and ours:
        yield Finding("devices", "NCCL", ", ".join(ours))


def precision(lines: list[dict[str, Any]]) -> Iterator[Finding]:
    """Whether the half precision types bring speed here, and by which instructions."""
    for dtype, why in (lines[0]["slow"] if lines else {}).items():
        by = lines[0]["instructions"][dtype]
        value = "no faster than float32" if why else f"fast: {', '.join(by)}" if by else "unknown"
        yield Finding("precision", dtype, value, note=why or "")


def cluster(environ: Mapping[str, str]) -> list[Finding]:
    """The cluster that the environment describes, and whether its other members can be reached now."""
    try:
        found = read_cluster(environ)
    except ClusterError as error:
        return [Finding("cluster", "TF_CONFIG", "wrong", problem=str(error))]
    task = launched_task(environ)
    if found is None and task is not None:
        return [Finding("cluster", "TF_CONFIG", "missing", problem=str(task))]
    if found is None:
        return [Finding("cluster", "TF_CONFIG, Slurm", "none: one process trains alone")]
    jobs = ", ".join(f"{len(addresses)} {job}" for job, addresses in found.jobs.items() if addresses)
    port = split_address(found.address)[1]
    taken = why_taken(port)
    text = f"Port {port} cannot be opened ({taken}): end what uses it, or choose another."
    free = Finding("cluster", "own port", f"{port} is free")
    own = (found.task_type, found.task_index)
    return [
        Finding("cluster", "members", jobs),
        Finding("cluster", "this process", f"{found.task_type} {found.task_index} at {found.address}"),
        Finding("cluster", "own port", str(port), problem=text) if taken else free,
        *(
            _peer(f"{job} {index}", address)
            for job, addresses in found.jobs.items()
            for index, address in enumerate(addresses)
            if (job, index) != own
        ),
    ]


def _peer(name: str, address: str) -> Finding:
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"The host name {host!r} of {name} is not known here ({error.strerror}): correct TF_CONFIG or the DNS."
        return Finding("cluster", name, address, problem=text)
    if not listens(address, CONNECT_SECONDS):
        text = "Nothing answers there yet: right if it has not been started, otherwise look for a firewall."
        return Finding("cluster", name, address, note=text)
    return Finding("cluster", name, f"{address} answers")


def ports() -> list[Finding]:
    """Whether the launcher can open ports on this machine."""
    try:
        free = free_ports(3)
    except OSError:
        text = "No port can be opened on 127.0.0.1, so workers cannot talk: ask for one to be allowed."
        return [Finding("ports", "on 127.0.0.1", "none", problem=text)]
    return [Finding("ports", "on 127.0.0.1", f"free, for instance {', '.join(map(str, free))}")]


def collectives(lines: list[dict[str, Any]], failure: str) -> Iterator[Finding]:
    """Whether one real all-reduce gave the right sum on every device."""
    if len(lines) == 1:
        text = f"The all-reduce between the devices fails: {failure}."
        yield Finding("collectives", "all-reduce", "fails", problem=text)
    for found in lines[1:]:
        names, expected = found["names"], found["expected"]
        wrong = [name for name, answer in zip(names, found["answers"]) if answer != expected]
        value = f"right on {len(names)} devices ({', '.join(names)}), {found['milliseconds']:.1f} ms"
        if len(names) == 1:
            value = f"one device ({names[0]}): there is nothing to reduce"
        text = (
            f"The all-reduce gives wrong sums on {', '.join(wrong)}: do not train on these devices together."
        )
        yield Finding("collectives", "all-reduce", "wrong" if wrong else value, problem=text * bool(wrong))
