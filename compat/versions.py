"""The supported versions of Keras and TensorFlow, and their private methods that classes of ours override."""

import contextlib
import importlib.metadata
import sys

SUPPORTED = {"tensorflow": ">=2.20,<2.22", "keras": ">=3.15,<3.16"}
"""The newest versions that pass every test; `pyproject.toml` has the same ones."""

XLA_CACHE_FLAGS = ("2.20.", "2.21.", "2.22.", "2.23.")
"""The versions of TensorFlow that know the flags of `xla_flags.py`: they are in the libraries of their wheels."""

LOG_LEVELS = {"2.20.": "12lts_20250127", "2.21.": "12lts_20250814"}
"""The C++ namespace of the functions that set the level of TensorFlow's log, by the version."""

_COPIES = "each replica writes its own copies of the variables"
_ONCE = "ours are called once for each compiled call, which may run many steps"

OVERRIDDEN = {
    "keras:optimizers.Optimizer": {
        "_track_variable": "a scalar is a Python number under a strategy, too",
        "_apply_weight_decay": _COPIES,
        "_backend_update_step": _COPIES,
        "_overwrite_model_variables_with_average_value": _COPIES,
        "_update_model_variables_moving_average": _COPIES,
        "_clip_gradients": "gradients are clipped after the all-reduce",
        "_get_current_learning_rate": "a schedule counts updates, not calls",
    },
    "BaseResourceVariable": dict.fromkeys(
        ("_serialize_to_tensors", "_restore_from_tensors", "_export_to_saved_model_graph"),
        "a divided variable is saved as a whole one",
    ),
    "ShardedVariable": dict.fromkeys(
        ("_serialize_to_tensors", "_restore_from_tensors"), "it is saved as a whole one"
    ),
    "CollectiveReplicaLauncher": {
        "_all_gather": "the ring of CPUs ends the process where it gathers nothing"
    },
    "keras:Model": {"_maybe_build": "a model that replicas call first is built once, and not in their graph"},
    "ModelCheckpoint": {
        "_save_model": "files are written atomically, by the chief, and the best are kept",
        "_should_save_on_batch": _ONCE,
        "_is_improvement": "NaN is never better",
    },
    "keras:callbacks.ProgbarLogger": {"_update_progbar": _ONCE, "_finalize_progbar": _ONCE},
    "TensorBoard": {
        "_collect_learning_rate": "a model of a custom loop may have no optimizer",
        "_compute_steps_per_second": _ONCE,
        "_write_keras_model_train_graph": "the graph is that of our own step function",
    },
    "CollectiveAllReduceExtended": {
        "_initialize_multi_worker": "a cluster is joined within a stated time",
        "_initialize_local_devices": "a worker of CPUs may have several replicas",
        "_create_variable": "workers create the same variables in the same order",
    },
    "ops.Graph": {
        "_get_function": "functions in functions, of many levels, would each have the functions of all deeper levels",
        "_add_function_recursive": "functions in functions, of many levels, would each have those of all deeper levels",
    },
    "WorkerPreemptionHandler": {
        "_validate_preemption_failure": "a worker may be left out of the cluster until it answers again"
    },
}
"""The class, as in `signatures.txt`, the names, and why."""


def describe_unsupported(lacking: str, part: str = "Unisono") -> str:
    """Return the error for versions that lack a name, without which `part` cannot work."""
    wanted = " and ".join(f"{name}{bounds}" for name, bounds in SUPPORTED.items())
    found = " and ".join(f"{name} {find_version(name)}" for name in SUPPORTED)
    return f"{part} needs {wanted}, but found {found}, which lack {lacking}: install supported versions."


def find_version(name: str) -> str:
    """Return the version of a package, or of its nightly build."""
    if version := getattr(sys.modules.get(name), "__version__", None):
        return version
    for package in (name, f"{name}-nightly", f"{name.replace('tensorflow', 'tf')}-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "not installed"


def show_versions() -> str:
    """Return the versions that must be the same on all workers."""
    names = {"unisono": "Unisono", "keras": "Keras", "tensorflow": "TensorFlow"}
    found = [f"{shown} {find_version(name)}" for name, shown in names.items()]
    return ", ".join([*found, f"Python {sys.version_info.major}.{sys.version_info.minor}"])
