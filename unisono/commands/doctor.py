"""`python -m unisono doctor`: what this machine offers for training, and what is wrong with it."""

import json
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..compat.versions import SUPPORTED, find_version
from ..distribute.environment import LONGEST_TIMEOUT, without_password
from ..distribute.hardware.machine import describe_cards
from ..distribute.hardware.program_cache import ProgramCache, list_entries, why_refused
from ..distribute.launcher.gpus import Gpu, complaint, read_gpus
from ..distribute.workers.addresses import free_ports, listens, split_address, why_taken
from ..distribute.workers.cluster import ClusterError, read_cluster
from ..distribute.workers.places import find_place
from ..version import __version__
from .parser import Parser, at_least

PARSER = Parser(
    "doctor",
    "Show the versions, devices and cluster of this machine, and its problems.",
    ["--timeout 60", "--path s3://bucket/run", "--json > findings.json", "--upstream"],
    {0: "nothing is wrong", 1: "a problem was found"},
)
PARSER.add_argument("--json", action="store_true", help="print the findings as JSON, for other programs")
PARSER.add_argument("--path", help="a folder or a URL: write, read, list and delete a file there")
PARSER.add_argument(
    "--upstream",
    action="store_true",
    help="for maintainers: list what the installed Keras and TensorFlow have changed of what Unisono uses, and nothing else",
)
_seconds = at_least(float, 1, LONGEST_TIMEOUT)
PARSER.add_argument("--timeout", type=_seconds, default=180.0, help="seconds for TensorFlow (default: 180)")


class Finding(NamedTuple):
    """One thing that was examined, with a problem (what to do, in one sentence), or a note that harms nothing."""

    section: str
    name: str
    value: str
    problem: str = ""
    note: str = ""


def main(argv: Sequence[str]) -> int:
    """Print the findings; return 0 if nothing is wrong, 1 if something is."""
    options = PARSER.parse_args(argv)
    findings = list(upstream()) if options.upstream else [*examine(options.timeout), *storage(options.path)]
    dicts = [dict(zip(Finding.__annotations__, f)) for f in findings]
    print(json.dumps(dicts, indent=1) if options.json else as_text(findings))
    return int(any(f.problem for f in findings))


def examine(seconds: float) -> Iterator[Finding]:
    """Examine everything; TensorFlow runs in a process that may take `seconds`."""
    own = {"python": platform.python_version(), "system": platform.platform(), "unisono": __version__}
    own |= {name: find_version(name) for name in SUPPORTED}
    yield from (Finding("versions", *each) for each in own.items())
    yield from gpus(found := read_gpus(), complaint())
    yield from tensorflow(*run_probe(os.environ, seconds), bool(found), os.environ)
    yield from programs(os.environ)
    yield from cluster(os.environ)
    try:
        yield Finding("ports", "on 127.0.0.1", f"free, for instance {free_ports(1)[0]}")
    except OSError as error:
        yield Finding("ports", "on 127.0.0.1", "none", f"Workers cannot talk: allow ports ({error}).")


def upstream() -> Iterator[Finding]:
    """Yield the versions, and each private name that is missing, moved or changed since the versions that were tested."""
    yield from (Finding("versions", name, find_version(name)) for name in SUPPORTED)
    try:
        from ..compat.upstream import find_changes  # reads the tables

        yield from (Finding("changed", *each) for each in find_changes())
    except (ImportError, OSError, ValueError) as error:
        yield Finding("changed", "tables", f"cannot be read: {error}", "Install Unisono again.")


def gpus(found: list[Gpu], complaint: str) -> Iterator[Finding]:
    """Yield what the NVIDIA driver says of each GPU, and what it complains about."""
    if complaint:
        yield Finding("devices", "nvidia-smi", complaint, "Install the driver again, or restart the machine.")
    for gpu in found:
        lost = "Reset the GPU (nvidia-smi --gpu-reset), or restart the machine." * bool(gpu.lost)
        busy = f"Another program uses it: {gpu.busy}." if gpu.busy and not lost else ""
        value = gpu.lost or f"{gpu.name}, {gpu.total} MiB, capability {gpu.capability}"
        yield Finding("devices", f"GPU {gpu.index or gpu.bus or '?'}", value, lost, busy)


def run_probe(environ: Mapping[str, str], seconds: float) -> tuple[dict[str, Any], str]:
    """Run `probe` in a process, which may hang; return what it found, and why it ended early ("" if it did not)."""
    command = [sys.executable, "-c", "from unisono.commands.doctor import probe; probe()"]
    environ = {"TF_CPP_MIN_LOG_LEVEL": "3", **{k: v for k, v in environ.items() if k != "TF_CONFIG"}}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, timeout=seconds)
        output, failure = done.stdout, done.stderr.decode().strip().split("\n")[-1] * bool(done.returncode)
    except subprocess.TimeoutExpired as error:
        output, failure = error.stdout or b"", f"no answer after {seconds:.0f} s"
    found = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    return {name: value for each in found for name, value in each.items()}, failure


def probe() -> None:
    """Print what TensorFlow computes on, then the sums of an all-reduce, each as a line of JSON."""
    import tensorflow as tf

    from ..distribute import simulate_devices
    from ..distribute.hardware.devices import why_xla_aborts
    from ..mixed_precision.hardware import cpu_flags, gpu_capabilities, why_slow

    slow = {dtype: why_slow(dtype, gpu_capabilities(), cpu_flags()) for dtype in ("float16", "bfloat16")}
    devices = [gpu.name[17:] for gpu in tf.config.list_physical_devices("GPU")]
    print(json.dumps({"gpus": devices, "slow": slow, "xla": why_xla_aborts()}), flush=True)
    strategy = tf.distribute.MirroredStrategy(devices or simulate_devices(2))
    here: Any = tf.distribute.get_replica_context
    ours = lambda: here().all_reduce("SUM", tf.constant([1.0, 2.0, 3.0]))  # noqa: E731
    sums = strategy.experimental_local_results(tf.function(lambda: strategy.run(ours))())
    print(json.dumps({"sums": [each.numpy().tolist() for each in sums]}), flush=True)


def tensorflow(found: Any, failure: str, driver: bool, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what `probe` found: devices, half precision, and whether an all-reduce returns the right sums."""
    if "gpus" not in found:
        yield Finding("devices", "TensorFlow", "fails", f"TensorFlow does not start: {failure}.")
        return
    hidden = driver and environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    text = "TensorFlow cannot use the NVIDIA GPU: pip install 'tensorflow[and-cuda]'."
    text *= driver and not hidden and not found["gpus"]
    value = ", ".join(found["gpus"]) or "no GPU: training runs on the CPU"
    note = (
        "TensorFlow's line `failed call to cuInit` is harmless without a GPU."
        if not (driver or found["gpus"])
        else ""
    )
    yield Finding(
        "devices", "TensorFlow", value, text, note or "CUDA_VISIBLE_DEVICES hides the GPUs." * hidden
    )
    if found.get("xla"):
        yield Finding("devices", "XLA", "not used: steps run in the plain graph", note=f"{found['xla']}.")
    for dtype, why in found["slow"].items():
        yield Finding("precision", dtype, "slow" if why else "not known to be slow", note=why or "")
    sums = found.get("sums", [])
    wrong = [f"device {n}" for n, each in enumerate(sums) if each != [len(sums) * v for v in (1, 2, 3)]]
    text = f"Do not train on these devices together: wrong sums on {', '.join(wrong)}." if wrong else ""
    text = text if sums else f"The all-reduce between the devices fails: {failure}."
    yield Finding("collectives", "all-reduce", "fails" if text else f"right on {len(sums)} devices", text)


def programs(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the folder of compiled programs, what it holds, and whether processes with this environment use it."""
    (cache := ProgramCache()).begin(dict(environ))
    if cache.folder is None:
        yield Finding("programs", "folder", "none", note=f"XLA compiles in every process: {cache.why_off}.")
        return
    found, problem = list_entries(cache.folder.parent), why_refused(cache.folder.parent)
    used = (
        "not used" if cache.why_off or problem else f"used for {'GPUs, too' if describe_cards() else 'CPUs'}"
    )
    yield Finding("programs", "folder", f"{cache.folder}, {used}", problem, cache.why_off)
    size = sum(size for _, size, _ in found) / 2**20
    yield Finding("programs", "of all machines", f"{len(found)} entries, {size:.1f} MiB")


def cluster(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the cluster that the environment describes, and whether its other members can be reached now."""
    try:
        found, problem = read_cluster(environ), str(find_place(environ) or "")
    except ClusterError as error:
        found, problem = None, str(error)
    if found is None:
        yield Finding("cluster", "TF_CONFIG, launcher", "wrong" if problem else "none", problem)
        return
    for job, index, address in ((job, i, a) for job, all in found.jobs.items() for i, a in enumerate(all)):
        own = (job, index) == (found.task_type, found.task_index)
        taken = why_taken(split_address(address)[1]) if own else None
        text = f"Its port cannot be opened ({taken}): stop what uses it, or choose another." if taken else ""
        note = "Nothing answers: start it, or look for a firewall or a wrong host name."
        note *= not own and not listens(address, 2.0)
        yield Finding("cluster", f"{job} {index}", f"{address}{' (this process)' * own}", text, note)


def storage(path: str | None) -> Iterator[Finding]:
    """Yield whether a small file can be written, read, listed and deleted in a folder or a store, as callbacks do."""
    if path is None:
        return
    from ..callbacks.safe_file import read_plain, write_safely  # imports TensorFlow
    from ..distribute.objects import is_remote, names_in, remove_file
    from ..distribute.storage import storage_path

    name, data, problem = f"unisono-doctor-{uuid.uuid4().hex}", b"from `unisono doctor`", ""
    try:
        if not is_remote(folder := storage_path("--path", path)):
            folder.mkdir(parents=True, exist_ok=True)
        write_safely(folder / name, lambda stream: stream.write(data), new=True)
        if read_plain(folder / name, 1 << 10) != data or name not in names_in(folder):
            problem = "A reader does not see a write at once: backups there would be lost."
        remove_file(folder / name)
        if name in names_in(folder):
            problem = "A deleted file is still listed: old backups would stay."
    except (ValueError, OSError) as error:
        problem = str(error)
    yield Finding(
        "storage", without_password(path), "fails" if problem else "written, read, listed, deleted", problem
    )


def as_text(findings: Sequence[Finding]) -> str:
    """Return the findings in columns, and a last line that lists the problems."""
    lines, width = [], max(len(f.name) for f in findings)
    for f in findings:
        lines.append(f" {'!' if f.problem else ' '} {f.section:11}  {f.name:{width}}  {f.value}")
        lines += [f"   {'':11}  {'':{width}}  {text}" for text in (f.problem, f.note) if text]
    marked = ", ".join(f.name for f in findings if f.problem)
    return "\n".join([*lines, "", f"problems, marked with !: {marked}" if marked else "nothing is wrong"])
