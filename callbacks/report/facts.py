"""The facts of a run that do not change while it runs: model, strategy, devices, configuration, versions."""

import collections
import contextlib
import math
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.seed_generators import seeds_as_set
from ...compat.tensorflow_private.strategies import devices_of
from ...compat.versions import find_version
from ...distribute.environment import show_variables
from ...distribute.hardware.device_memory import STATUS, bytes_in
from ...distribute.hardware.devices import gpu_details
from ...state.trained_model import FitState, TrainedModel

_PACKAGES = ("unisono", "tensorflow", "keras", "numpy")
# What users call a class, by its name.
_STRATEGIES = {
    "_DefaultDistributionStrategy": "none",
    "CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy",
    "ParameterServerStrategyV2": "ParameterServerStrategy",
}
# The variables in which a scheduler says which job a process is part of.
_JOB_VARIABLES = {
    "SLURM_JOB_ID": "Slurm job",
    "SLURM_ARRAY_JOB_ID": "Slurm array",
    "SLURM_ARRAY_TASK_ID": "Slurm array task",
    "RAY_JOB_ID": "Ray job",
    "JOB_COMPLETION_INDEX": "Kubernetes job index",
}
_INPUTS = {
    "ArraySource": "arrays",
    "StreamedArrays": "arrays, read from the host in parts",
    "DatasetSource": "tf.data.Dataset",
    "PyDatasetSource": "keras.utils.PyDataset",
    "StreamSource": "generator or data loader",
}


def strategy_name(strategy: tf.distribute.Strategy) -> str:
    """Return what users call the class of a strategy."""
    kind = type(strategy).__name__
    return _STRATEGIES.get(kind, kind)


def facts_of(model: TrainedModel, fit_state: FitState) -> dict[str, Any]:
    """Return what a report says before its first number: flat dicts of JSON values, and the summary of the model."""
    lines: list[str] = []
    model.summary(print_fn=lambda text, **_: lines.append(text), line_length=96)
    outputs = list(getattr(model, "output_names", None) or [])
    strategy = model.distribute_strategy
    return {
        "model": {
            "name": model.name,
            "class": type(model).__name__,
            **({"outputs": outputs} if len(outputs) > 1 else {}),
            "layers": len(model.layers),
            "trainable parameters": sum(math.prod(w.shape) for w in model.trainable_weights),
            "other parameters": sum(math.prod(w.shape) for w in model.non_trainable_weights),
            "dtype policy": model.dtype_policy.name,
        },
        "strategy": {
            "strategy": strategy_name(strategy),
            "replicas": strategy.num_replicas_in_sync,
            "devices": [str(d).rpartition("device:")[2] for d in devices_of(strategy)],
            "logical devices": [d.name.rpartition("device:")[2] for d in tf.config.list_logical_devices()],
        },
        "configuration": _configuration(model, fit_state),
        "versions": {"python": platform.python_version()} | {name: find_version(name) for name in _PACKAGES},
        "machine": {
            "host": socket.gethostname(),
            "system": f"{platform.system()} {platform.release()}",
            "CPU cores": len(os.sched_getaffinity(0)),
            **read_gpu_models(),
            **read_job(os.environ),
            "git commit": git_commit(Path.cwd()) or "none",
        },
        "environment": show_variables(os.environ),
        "summary": "\n".join(lines),
    }


def git_commit(folder: Path) -> str:
    """Return the commit that is checked out in `folder`; empty without a repository or without git."""
    try:
        command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def read_gpu_models() -> dict[str, str]:
    """Read the models of the GPUs that TensorFlow sees, and the version of their driver; empty without GPUs."""
    models = collections.Counter(str(each.get("device_name", "unknown")) for each in gpu_details())
    found = {"GPUs": ", ".join(f"{count} x {name}" for name, count in models.items())} if models else {}
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text()
        said = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text)
        found |= {"GPU driver": said[1]} if models and said else {}
    return found


def read_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Read which job of a scheduler this process is part of.

    >>> read_job({"SLURM_JOB_ID": "71", "HOME": "/root"}), read_job({"KUBERNETES_SERVICE_HOST": "a", "HOSTNAME": "b"})
    ({'Slurm job': '71'}, {'Kubernetes pod': 'b'})
    """
    found = {label: environ[name] for name, label in _JOB_VARIABLES.items() if environ.get(name)}
    if environ.get("KUBERNETES_SERVICE_HOST") and environ.get("HOSTNAME"):
        found["Kubernetes pod"] = environ["HOSTNAME"]
    return found


def memory_bytes() -> dict[str, int]:
    """Return the bytes in use, by this process ("host") and on each of its GPUs, with their peaks. Context: host."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, StopIteration):
        names = {"host": "VmRSS", "host peak": "VmHWM"}
        found = {key: bytes_in(STATUS, name) for key, name in names.items()}
    for gpu in tf.config.list_logical_devices("GPU"):
        name = gpu.name.rpartition("device:")[2]
        info = tf.config.experimental.get_memory_info(name)
        found[name], found[f"{name} peak"] = int(info["current"]), int(info["peak"])
    return found


def _configuration(model: TrainedModel, fit_state: FitState) -> dict[str, Any]:
    kind, auto_steps = type(fit_state.source).__name__, getattr(model, "_auto_steps", False)
    result: dict[str, Any] = {
        "epochs": fit_state.epochs,
        "steps per epoch": fit_state.steps_per_epoch or "unknown",
        "global batch": fit_state.samples_per_step or "unknown",
        "input": "unknown" if fit_state.custom_loop else _INPUTS.get(kind, kind),
        "steps per compiled call": "auto" if auto_steps else model.steps_per_execution,
        "loss": _name(getattr(model, "loss", None)),
        **{name: str(seed) for name, seed in seeds_as_set().items()},
    }
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.Optimizer):
        if hasattr(optimizer, "inner_optimizer"):
            result["loss scale"], optimizer = "on", optimizer.inner_optimizer
        result["optimizer"] = type(optimizer).__name__
        for key, value in optimizer.get_config().items():
            if value is not None and key not in ("name", "loss_scale_factor"):
                result[f"optimizer.{key}"] = _name(value)
    return result


def _name(value: Any) -> Any:
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict) and "class_name" in value:
        return f"{value['class_name']} {value.get('config', '')}"
    if isinstance(value, dict):
        return {key: _name(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_name(v) for v in value]
    return getattr(value, "__name__", None) or type(value).__name__
