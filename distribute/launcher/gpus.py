"""The GPUs of this machine, from `nvidia-smi`, and the usable ones. Needs no TensorFlow."""

import dataclasses
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence

_FIELDS = "index,uuid,name,memory.total,memory.used,utilization.gpu,compute_cap,pci.bus_id"
_SECONDS = 20
_LOST = re.compile(r"(?:lost|ERR!|Unknown Error|fallen off the bus)", re.IGNORECASE)
_BUSY_SHARE = 0.1
_BUSY_PERCENT = 20


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: str  # in `nvidia-smi` and, with CUDA_DEVICE_ORDER=PCI_BUS_ID, in CUDA
    uuid: str = ""  # its name for CUDA_VISIBLE_DEVICES in any order
    name: str = ""  # its model
    total: int | None = None  # MiB of memory; None: not known
    used: int | None = None  # MiB
    percent: int | None = None  # its utilization in the last second
    capability: str = ""  # "9.0"
    bus: str = ""  # "00000000:3B:00.0"
    lost: str = ""  # the message of `nvidia-smi` for a failed GPU; empty: it works

    @property
    def busy(self) -> str:
        """The use of the GPU by other programs; empty if there is none."""
        share = (self.used or 0) / self.total if self.total else 0.0
        if share < _BUSY_SHARE and (self.percent or 0) < _BUSY_PERCENT:
            return ""
        return f"{self.used or 0} of {self.total or 0} MiB taken, {self.percent or 0} % busy"


def read_gpus() -> list[Gpu]:
    """Return all GPUs of the machine, regardless of CUDA_VISIBLE_DEVICES; [] without an NVIDIA driver."""
    return parse(_nvidia_smi() or "")


def complaint() -> str:
    """Return the message of `nvidia-smi` if it lists no GPU, as with a driver of a different version; else empty."""
    said = _nvidia_smi()
    if said is None or parse(said) or "no devices" in said.lower():
        return ""
    return said.partition("\n")[0] or f"no answer within {_SECONDS} s"


def _nvidia_smi() -> str | None:
    """Return its output about all GPUs; None if it is not installed, "" without an answer."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    command = [tool, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip()


def parse(listing: str) -> list[Gpu]:
    """Return the GPUs in the output of `nvidia-smi --query-gpu`, errors included."""
    gpus = []
    for line in listing.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == _FIELDS.count(",") + 1 and cells[0].isdecimal():
            index, uuid, name, *numbers, capability, bus = cells
            total, used, percent = (int(text) if text.isdecimal() else None for text in numbers)
            capability = capability if "." in capability else ""
            lost = line.strip() if _LOST.search(line) else ""
            gpus.append(Gpu(index, uuid, name, total, used, percent, capability, bus, lost))
        elif _LOST.search(line):
            found = re.search(r"GPU\s*([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)", line)
            gpus.append(Gpu("", bus=found.group(1) if found else "", lost=line.strip()))
    return gpus


def visible(gpus: Sequence[Gpu]) -> list[str]:
    """Return the CUDA_VISIBLE_DEVICES values of the usable GPUs, idle ones first; lost ones are left out.

    GPUs that this process's own CUDA_VISIBLE_DEVICES names are used as given.
    """
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        names = [name.strip() for name in chosen.split(",")]
        seen = itertools.takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names)
        return list(seen)  # like CUDA, which ignores all GPUs after one that does not exist
    working = [gpu for gpu in gpus if not gpu.lost]
    return [gpu.index for gpu in sorted(working, key=lambda gpu: (bool(gpu.busy), int(gpu.index)))]


def environment_of(names: Sequence[str], alone: bool = True) -> dict[str, str]:
    """Return the variables of a worker with the GPUs `names`, on one machine if `alone`; the user's NCCL settings stay."""
    wanted = {"CUDA_VISIBLE_DEVICES": ",".join(names)}
    if "CUDA_VISIBLE_DEVICES" not in os.environ:  # else the user may use CUDA's own numbers
        wanted["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi counts
    ours = {"NCCL_DEBUG": "WARN"} | ({"NCCL_SOCKET_IFNAME": "lo"} if alone else {})  # errors say why
    return wanted | {name: value for name, value in ours.items() if name not in os.environ}
