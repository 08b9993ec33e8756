"""The supported versions, and the private attributes that are used of Keras and TensorFlow.

The owners in the tables are public names (`keras:Model`), names of `upstream_places.py`, or attributes of these.
"""

import contextlib
import importlib.metadata
import sys

SUPPORTED = {"tensorflow": ">=2.20,<2.22", "keras": ">=3.15,<3.16"}
"""The newest versions that pass every test; `pyproject.toml` has the same ones."""

XLA_CACHE_FLAGS = ("2.20.", "2.21.", "2.22.", "2.23.")
"""The versions of TensorFlow that know the flags of `xla_flags.py`: they are in the libraries of their wheels."""

LOG_LEVELS = {"2.20.": "12lts_20250127", "2.21.": "12lts_20250814"}
"""The C++ namespace of the functions that set the level of TensorFlow's log, by the version."""

ATTRIBUTES = {
    "keras:Model": "_assert_compile_called _call_has_training_arg _compile_config "
    "_compile_loss _compile_metrics _compute_loss _distribute_strategy _flatten_layers "
    "_flatten_metrics_in_order _get_own_losses _initial_epoch _loss_ids "
    "_loss_tracker _losses_override _non_trainable_variables _should_eval _symbolic_build "
    "_trainable_variables",
    "keras:Sequential": "_functional",
    "KerasSaveable": "_unpickle_model",
    "keras:Metric": "_metrics",
    "keras:metrics.AUC": "_built",
    "keras:distribution.ModelParallel": "_layout_map",
    "keras:layers.Layer": "_call_context_args _call_signature _metrics _remat_mode _seed_generators",
    "keras:Variable": "_initialize _maybe_autocast _shape _value",
    "keras:optimizers.Optimizer": "_accumulated_gradients _check_variables_are_known _distribution_strategy "
    "_get_variable_index _iterations _learning_rate _model_variables_moving_average _track_trackable "
    "_trainable_variables _trainable_variables_indices _use_weight_decay _var_key _variables",
    "MultiOptimizer": "_inner_optimizers _optimizer_map _var_to_optimizer_idx",
    "keras:callbacks.Callback.on_batch_end": "_is_default",
    "ModelCheckpoint": "_batches_seen_since_last_saving _get_file_path _last_batch_seen "
    "_set_monitor_op _should_save_model",
    "TensorBoard": "_close_writers _global_test_batch _global_train_batch _is_tracing "
    "_should_trace _should_write_train_graph _start_batch _start_trace _stop_batch _stop_trace "
    "_train_writer _val_writer _writers",
    "LossFunctionWrapper": "_fn_kwargs",
    "MeanMetricWrapper": "_fn_kwargs",
    "Functional": "_inputs_struct _nodes_by_depth _operations _outputs_struct _standardize_inputs",
    "CompileLoss": "_flat_losses _user_loss_weights",
    "CompileMetrics": "_user_metrics _user_weighted_metrics",
    "tensorflow:RegisterGradient": "_op_type",
    "tensorflow:data.Options": "_to_proto",
    "tensorflow:data.Dataset": "_GeneratorState _as_serialized_graph _functions _inputs _variant_tensor",
    "GeneratorState": "_generator",
    "ShuffleDataset": "_seed _seed2",
    "TensorSliceDataset": "_structure _tensors",
    "TensorDataset": "_structure _tensors",
    "OwnedIterator": "_iterator_resource",
    "ParallelMapDataset": "_deterministic",
    "CollectiveAllReduceExtended": "_communication_options _cross_device_ops",
    "CollectiveAllReduce": "_launchers",
    "CollectiveReplicaLauncher": "_all_gather _collective_keys _device "
    "_get_ordering_token _group_key _group_size _next_instance_key _options",
    "cluster_coordinator.ClusterCoordinator": "_cluster",
    "WorkerPreemptionHandler": "_server_def _validate_preemption_failure",
    "cluster_coordinator._CoordinatedClosureQueue": "_cancellation_mgr _error",
    "ReplicaContextBase": "_replica_id",
    "StrategyExtendedV2": "_container_strategy",
    "DistributedDataset": "_cloned_datasets _original_dataset _strategy",
    "DistributedDatasetsFromFunction": "_datasets _strategy",
    "MirroredExtended": "_call_for_each_replica _devices",
    "CollectiveKeys": "_instance_key_table",
    "CachingVariable": "_v",
    "DistributedVariable": "_distributed_container _primary",
    "ParameterServerStrategyV2": "_cluster_resolver",
    "ParameterServerStrategyV2Extended": "_being_scheduled",
    "context": "_context",
    "context.Context": "_config _handle _physical_devices _rng",
    "Function": "_autograph _clone "
    "_concrete_variable_creation_fn _created_variables _jit_compile _omit_frequent_tracing_warning "
    "_variable_creation_config",
    "ConcreteFunction": "_call_flat",
    "BatchableTypeSpec": "_batch",
    "ops.gradient_registry": "_registry",
    "ops.Graph": "_add_function_recursive _attr_scope_map _colocation_stack "
    "_control_dependencies_stack _create_op_internal _default_original_op _device_function_stack "
    "_distribution_strategy_stack _get_control_flow_context _get_function _original_op _variable_creator_scope",
    "CondGradFuncGraph": "_forward_graph",
    "WhileBodyGradFuncGraph": "_forward_graph",
    "ops.Operation": "_clear_attr _from_c_op _id _set_device",
    "EagerFunc": "_func",
    "BaseResourceVariable": "_strided_slice_assign "
    "_cached_value _shared_name _unique_id batch_scatter_update scatter_add scatter_nd_update scatter_update sparse_read",
}
"""The private attributes that are read, written or called: the class or module that has them, and their names."""

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
        "_add_new_tf_operations": "operations of a graph for shapes alone need no devices, which cost most of the time",
        "_get_function": "functions in functions, of many levels, would each have the functions of all deeper levels",
        "_add_function_recursive": "functions in functions, of many levels, would each have those of all deeper levels",
    },
    "WorkerPreemptionHandler": {
        "_validate_preemption_failure": "a worker may be left out of the cluster until it answers again",
    },
}
"""The private methods of Keras and TensorFlow that classes of ours override: the class, the names, and why."""


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
