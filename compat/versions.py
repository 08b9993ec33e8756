"""Which versions are supported, and whether the installed ones have every private name that is used here.

The modules of this package import the private names of modules; the tables below are the attributes of objects. An attribute
that only objects have counts as there if a method of the class sets it.
"""

from __future__ import annotations

import dis
import importlib.metadata
import inspect
import types
from collections.abc import Iterator
from typing import Any

SUPPORTED = {"tensorflow": ">=2.20,<2.22", "keras": ">=3.15,<3.16"}
"""Up to which versions every test was run; `pyproject.toml` says the same."""


def attributes() -> dict[Any, str]:
    """The private attributes that are read, written or called: the class or module that has them, and their names."""
    import keras
    import tensorflow as tf
    from keras.src.backend.tensorflow import random as backend_random
    from keras.src.losses.losses import LossFunctionWrapper
    from keras.src.metrics.reduction_metrics import MeanMetricWrapper
    from keras.src.models.functional import Functional
    from keras.src.trainers.compile_utils import CompileLoss
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator
    from tensorflow.python.distribute import parameter_server_strategy_v2 as parameter_servers
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
    from tensorflow.python.distribute.coordinator import cluster_coordinator
    from tensorflow.python.distribute.distribute_lib import ReplicaContextBase
    from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
    from tensorflow.python.eager.context import Context
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    return {
        keras.Model: "_assert_compile_called _call_has_training_arg _compile_config _compile_loss _compile_metrics "
        "_compute_loss _distribute_strategy _flatten_layers _flatten_metrics_in_order _initial_epoch _loss_ids "
        "_loss_tracker _losses_override _should_eval _symbolic_build _trainable_variables",
        keras.Sequential: "_functional",
        Functional: "_nodes_by_depth _operations _outputs_struct _standardize_inputs",
        CompileLoss: "_flat_losses",
        LossFunctionWrapper: "_fn_kwargs",
        MeanMetricWrapper: "_fn",
        keras.Variable: "_initialize _maybe_autocast _value",
        keras.optimizers.Optimizer: "_accumulated_gradients _check_variables_are_known _distribution_strategy "
        "_get_variable_index _iterations _learning_rate _model_variables_moving_average _track_trackable "
        "_trainable_variables _trainable_variables_indices _unpickle_model _use_weight_decay _var_key _variables",
        keras.optimizers.MultiOptimizer: "_inner_optimizers _var_to_optimizer_idx",
        keras.callbacks.Callback.on_batch_end: "_is_default",
        keras.callbacks.ModelCheckpoint: "_batches_seen_since_last_saving _get_file_path _last_batch_seen "
        "_set_monitor_op _should_save_model",
        keras.callbacks.TensorBoard: "_close_writers _global_test_batch _global_train_batch _is_tracing _should_trace "
        "_should_write_train_graph _start_batch _start_trace _stop_batch _stop_trace _train_writer _val_writer",
        backend_random: "_cast_seed _get_concrete_noise_shape",
        BaseResourceVariable: "_unique_id",
        Function: "_concrete_variable_creation_fn _omit_frequent_tracing_warning _variable_creation_config",
        Context: "_rng",
        tf.data.Dataset: "_inputs _variant_tensor",
        OwnedIterator: "_iterator_resource",
        MirroredExtended: "_devices",
        ReplicaContextBase: "_replica_id",
        CollectiveAllReduceExtended: "_communication_options",
        parameter_servers.ParameterServerStrategyV2: "_cluster_resolver",
        parameter_servers.ParameterServerStrategyV2Extended: "_being_scheduled _num_workers",
        cluster_coordinator.ClusterCoordinator: "_cluster",
        cluster_coordinator.WorkerPreemptionHandler: "_server_def",
        cluster_coordinator._CoordinatedClosureQueue: "_error",
    }


def overridden() -> dict[Any, dict[str, str]]:
    """The private methods of Keras that classes of ours override: the class of Keras, the names, and why."""
    import keras

    copies = "each replica writes its own copies of the variables"
    once = "ours are called once for each execution, which may be many steps"
    return {
        keras.optimizers.Optimizer: {
            "_apply_weight_decay": copies,
            "_backend_update_step": copies,
            "_overwrite_model_variables_with_average_value": copies,
            "_update_model_variables_moving_average": copies,
            "_clip_gradients": "gradients are clipped after they were summed over the replicas",
            "_get_current_learning_rate": "a schedule is asked about updates, not about calls",
        },
        keras.callbacks.ModelCheckpoint: {
            "_save_model": "files are written whole or not at all, by the chief, and the best are kept",
            "_should_save_on_batch": once,
            "_is_improvement": "what is not a number is never better",
        },
        keras.callbacks.ProgbarLogger: {"_update_progbar": once, "_finalize_progbar": once},
        keras.callbacks.TensorBoard: {
            "_compute_steps_per_second": once,
            "_write_keras_model_train_graph": "the graph is that of our own step function",
        },
    }


def missing_attributes() -> list[str]:
    """The names of the tables, and those that are replaced, that the installed versions lack, as `Owner.name`."""
    from .replaced import REPLACED, WRAPPED

    tables = [(owner, names.split()) for owner, names in attributes().items()]
    tables += [(owner, list(names)) for owner, names in overridden().items()]
    tables += [(each.owner, [each.name]) for each in (*REPLACED, *WRAPPED)]
    found = []
    for owner, names in tables:
        lacking = {name for name in names if not hasattr(owner, name)}
        if lacking:
            found += [
                f"{owner.__name__}.{name}" for name in sorted(lacking - set(_set_by_methods(owner, lacking)))
            ]
    return found


def _set_by_methods(cls: Any, names: set[str]) -> Iterator[str]:
    """Those of `names` that a method of the class, or of one that it inherits from, gives its objects."""
    for base in getattr(cls, "__mro__", ()):
        for member in vars(base).values():
            member = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
            if isinstance(member, types.FunctionType) and names.intersection(member.__code__.co_names):
                made = (each.argval for each in dis.get_instructions(member) if each.opname == "STORE_ATTR")
                yield from names.intersection(made)


def unsupported(lacking: str) -> str:
    """The error on versions that lack something."""
    wanted = " and ".join(f"{name}{bounds}" for name, bounds in SUPPORTED.items())
    found = " and ".join(f"{name} {_installed(name)}" for name in SUPPORTED)
    return f"Unisono works with {wanted}, and here are {found}, which lack {lacking}: install versions that it works with."


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
