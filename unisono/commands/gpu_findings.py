"""What is found about the GPUs of this machine without TensorFlow, which shows only those that work."""

from __future__ import annotations

from collections.abc import Mapping

from ..distribute.launcher.gpus import Gpu, cores_near
from .finding import Finding


def driver(said: str) -> list[Finding]:
    """A driver that is there and lists no GPU; `said` is what it says, empty where there is nothing to say."""
    text = "Install the driver again, or restart the machine after an upgrade: until then everything runs on the CPU."
    return [Finding("devices", "nvidia-smi", said, problem=text)] if said else []


def gpus_of_machine(gpus: list[Gpu], environ: Mapping[str, str]) -> list[Finding]:
    """What the NVIDIA driver says of each GPU: its model, whether it is busy or lost, and the cores beside it."""
    findings = []
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    for gpu in gpus:
        name = f"GPU {gpu.index or gpu.bus or '?'}"
        if gpu.lost:
            text = "The GPU is lost: reset it (nvidia-smi --gpu-reset), or restart the machine; launch leaves it out."
            findings.append(Finding("devices", name, gpu.lost, problem=text))
            continue
        cores = cores_near(gpus, [gpu.index])
        details = [
            gpu.name,
            f"{gpu.total} MiB" if gpu.total else "",
            f"capability {gpu.capability}" if gpu.capability else "",
        ]
        details.append(f"beside cores {cores}" if cores else "")
        busy = f"Another program uses it: {gpu.busy}; launch takes idle GPUs first." if gpu.busy else ""
        findings.append(Finding("devices", name, ", ".join(filter(None, details)), note=busy))
    models = sorted({gpu.name for gpu in gpus if not gpu.lost})
    if len(models) > 1 and shown is None:
        text = "Replicas wait for the slowest of them in every step: choose those of one model with CUDA_VISIBLE_DEVICES."
        findings.append(Finding("devices", "models", ", ".join(models), note=text))
    ours = {name: value for name, value in environ.items() if name.startswith("NCCL_")}
    if gpus and ours:
        findings.append(Finding("devices", "NCCL", ", ".join(f"{k}={v}" for k, v in sorted(ours.items()))))
    return findings
