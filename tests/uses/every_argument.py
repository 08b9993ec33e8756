"""Every argument of every public name, with its kind.

The kind of an argument says which values of `values.py` it accepts; for any other value the error must name the argument.
A name that exists in Keras may also do what Keras does, error for error.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from uses.bench import Bench, X, Y, keras, tf, unisono

callbacks, optimizers = unisono.callbacks, unisono.optimizers
distribute, precision, schedules = unisono.distribute, unisono.mixed_precision, unisono.optimizers.schedules


class Subject(NamedTuple):
    """A public function or class, valid arguments for it, the kind of each argument, and Keras' object of that name."""

    call: Callable[..., Any]
    takes: dict[str, str]
    right: dict[str, Any] = {}
    keras: Callable[..., Any] | None = None


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments."""
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind not in kinds]


def of(call: Callable[..., Any], right: dict[str, Any] | None = None, **takes: str) -> Subject:
    return Subject(call, takes, right or {})


def _same(kind: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, kind)


TRUTH = "truth of anything, as in Keras"
_CALLBACKS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "AnomalyReport": ({}, {"path": "path or none"}),
    "BackupAndRestore": (
        {"directory": "place"},
        {
            "directory": "path",
            "save_freq": "frequency",
            "keep": "count from 1 or True",
            **_same("flag", "save_before_preemption", "delete_when_done", "background"),
            "identity": "name, or none",
            "generators": "empty list",
            "on_damaged": "nothing",
            "backup_dir": "none",
            **_same("flag or none", "double_checkpoint", "delete_checkpoint"),
        },
    ),
    "JSONLines": ({"path": "log"}, {"path": "path", "every": "count from 1", "clock": "function"}),
    "ModelCheckpoint": (
        {"filepath": "{epoch}.keras"},
        {
            "filepath": "nothing",
            "verbose": "count",
            **_same("flag", "save_best_only"),
            "save_weights_only": "small number",
            "save_freq": "frequency",
            "initial_value_threshold": "any number or none",
            **_same("count from 1 or none", "keep_best", "keep_last"),
        },
    ),
    "Profiler": (
        {"log_dir": "profile"},
        {"log_dir": "path", "steps": "pair of steps or none", "port": "port or none"},
    ),
    "ProgressBar": ({}, {"stream": "none", "clock": "function"}),
    "TensorBoard": (
        {"log_dir": "logs"},
        {
            "log_dir": "path",
            **_same("count", "histogram_freq", "embeddings_freq"),
            **_same("flag", "write_graph", "write_images", "write_steps_per_second"),
            "update_freq": "count from 1",
        },
    ),
    "TrainingReport": (
        {"path": "report.html"},
        {
            "path": "nothing",
            "title": "anything, shown as text",
            "refresh_seconds": "not negative",
            "gradient_norm": "flag",
            "clock": "function",
            "config": "dict or none",
            "notes": "name, or none",
        },
    ),
}
_SETTINGS = {
    "learning_rate": "rate",
    "name": "name, or none",
    **_same(
        "small number", "momentum", "rho", "ema_momentum", "adam_beta_1", "adam_beta_2", "beta_1", "beta_2"
    ),
    **_same("positive or none", "clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"),
    **_same("flag", "amsgrad", "centered", "exclude_embeddings", "nesterov", "relative_step", "use_ema"),
    **_same("not negative or none", "weight_decay", "adam_weight_decay"),
    **_same("not negative", "adam_lr_ratio", "beta", "epsilon", "epsilon_1", "epsilon_2"),
    **_same("not negative", "initial_accumulator_value", "l1_regularization_strength"),
    **_same("not negative", "l2_regularization_strength", "l2_shrinkage_regularization_strength"),
    **_same("not positive", "beta_2_decay", "learning_rate_power"),
    **_same("number", "muon_a", "muon_b", "muon_c"),
    "clip_threshold": "positive",
    **_same("count or none", "ema_overwrite_frequency", "gradient_accumulation_steps"),
    "warmup_steps": "count",
    "ns_steps": "count from 1",
}
_PIECES = {
    "AdaptiveClip": ({}, _same("positive or infinite", "factor", "epsilon")),
    "AddDecayedWeights": ({"rate": 0.1}, {"rate": "not negative", "min_rank": "count"}),
    "ClipByGlobalNorm": ({"clip_norm": 1.0}, {"clip_norm": "positive or infinite"}),
    "ClipByNorm": ({"clip_norm": 1.0}, {"clip_norm": "positive or infinite"}),
    "ClipByValue": ({"clip_value": 1.0}, {"clip_value": "positive or infinite"}),
    "GradientNoise": ({}, {"eta": "positive or infinite", "gamma": "not negative", "seed": "whole"}),
    "HalfPrecisionAggregation": ({}, {"dtype": "nothing"}),
    "PackedAggregation": ({}, {"max_elements": "count from 1"}),
}


def subjects(bench: Bench) -> dict[str, Subject]:
    """Every public function and class with its arguments; `bench` has the model."""
    model, place = bench.model, bench.folder
    run = place / "run.jsonl"
    facts = {
        "strategy": {"replicas": 1},
        "configuration": {"epochs": 1},
        "model": {"trainable parameters": 1},
    }
    run.write_text(json.dumps({"event": "begin", "time": 1.0, **facts, "summary": ""}) + "\n")
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    pair = [(tf.ones(2), tf.Variable([1.0, 2.0]))]
    devices = ["CPU:0", "CPU:0"]
    found = {
        name: Subject(
            getattr(callbacks, name), takes, {key: str(place / value) for key, value in right.items()}
        )
        for name, (right, takes) in _CALLBACKS.items()
    }
    for name in optimizers.__all__:
        cls = getattr(optimizers, name)
        if isinstance(cls, type) and name in vars(keras.optimizers) and name not in OTHERS:
            takes = {key: _SETTINGS[key] for key in arguments_of(cls) if key in _SETTINGS}
            found[name] = Subject(cls, takes, {}, getattr(keras.optimizers, name))
    found |= {
        name: Subject(getattr(optimizers, name), takes, right) for name, (right, takes) in _PIECES.items()
    }
    for name in ("all_reduce_sum_pairs", "centralize", "no_aggregation"):
        right = {"grads_and_vars": pair}
        found[name] = of(getattr(optimizers, name), right, grads_and_vars="pairs")
    found["all_reduce_sum_pairs"].takes["pack_below"] = "count"
    scale = {
        "initial_scale": "positive",
        "dynamic_growth_steps": "count from 1",
        "inner_optimizer": "nothing",
    }
    on_batch = {"x": X, "y": Y}
    data = _same("nothing", "x", "y")
    weights = {"sample_weight": "none"}
    loop = {"verbose": "verbose", "callbacks": "callbacks"}
    sizes = _same("count from 1 or none", "batch_size", "per_replica_batch_size")
    return found | {
        "latest_backup": of(callbacks.latest_backup, directory="path"),
        "list_backups": of(callbacks.list_backups, directory="path"),
        "read_backup": of(callbacks.read_backup, path="nothing"),
        "verify_checkpoint": of(callbacks.verify_checkpoint, path="nothing"),
        "LossScaleOptimizer": Subject(
            optimizers.LossScaleOptimizer, scale, {"inner_optimizer": optimizers.SGD()}
        ),
        "MultiOptimizer": of(
            optimizers.MultiOptimizer,
            {"optimizer_map": optimizers.OptimizerMap(optimizers.SGD())},
            optimizer_map="nothing",
        ),
        "get": Subject(optimizers.get, {"identifier": "none"}, {}, keras.optimizers.get),
        "scaled": of(
            schedules.scaled,
            {"learning_rate": 0.1, "reference_batch_size": 2, "global_batch_size": 4},
            learning_rate="not negative",
            **_same("count from 1", "reference_batch_size", "global_batch_size"),
            rule="nothing",
            warmup_steps="count",
        ),
        "ScaledSchedule": of(
            schedules.ScaledSchedule,
            {"learning_rate": 0.1, "factor": 2.0},
            learning_rate="not negative",
            factor="positive",
            warmup_steps="count",
        ),
        "diagnose": of(
            precision.diagnose, {"model": model, "batch": (X, Y)}, model="nothing", loss_scale="positive"
        ),
        "enable_tensor_float_32": of(precision.enable_tensor_float_32, enabled="true"),
        "set_global_policy": of(precision.set_global_policy, name="nothing"),
        "Pipeline": of(
            distribute.Pipeline,
            {"devices": devices, "micro_batches": 2},
            **_same("nothing", "devices", "schedule", "cost"),
            micro_batches="count from 1",
            rematerialize="flag",
            memory_limit="positive or infinite or none",
            replicas="count below 64",
            partition="numbers of layers",
        ),
        "auto_strategy": of(distribute.auto_strategy, communication_options="none"),
        "strategy_of": of(distribute.strategy_of, distribution="nothing"),
        "global_batch_size": of(
            distribute.global_batch_size, {"per_replica": 2}, per_replica="count from 1", strategy="none"
        ),
        "keep_data_on": of(distribute.keep_data_on, **_same("nothing", "place", "memory_share")),
        "sharded": of(distribute.sharded, {"strategy": strategy}, **_same("nothing", "strategy", "level")),
        "simulate_devices": of(distribute.simulate_devices, count="nothing"),
        "adopt": of(unisono.adopt, model="nothing"),
        "clone_model": of(unisono.clone_model, model="nothing"),
        "synchronize_batch_norm": of(unisono.synchronize_batch_norm, model="nothing"),
        "load_model": of(unisono.load_model, filepath="nothing"),
        "replica_step": of(unisono.replica_step, fn="function"),
        "rowwise": of(unisono.rowwise, fn="function"),
        "fit": of(
            model.fit,
            {**on_batch, "verbose": 0},
            **data,
            **weights,
            **loop,
            **sizes,
            class_weight="dict or none",
            epochs="epochs",
            initial_epoch="count",
            shuffle="shuffle",
            validation_data="none",
            validation_split="split",
            **_same("count from 1 or none", "steps_per_epoch", "validation_steps", "validation_batch_size"),
            validation_freq="epochs to validate",
            fast_dev_run="flag",
            overfit_batches="count from 1 or none",
        ),
        "evaluate": of(
            model.evaluate,
            {**on_batch, "verbose": 0},
            **data,
            **weights,
            **loop,
            **sizes,
            steps="count from 1 or none",
            return_dict=TRUTH,
        ),
        "predict": of(
            model.predict, {"x": X, "verbose": 0}, x="nothing", **loop, **sizes, steps="count from 1 or none"
        ),
        "train_on_batch": of(
            model.train_on_batch, on_batch, **data, **weights, class_weight="dict or none", return_dict=TRUTH
        ),
        "test_on_batch": of(model.test_on_batch, on_batch, **data, **weights, return_dict=TRUTH),
        "predict_on_batch": of(model.predict_on_batch, {"x": X}, x="nothing"),
        # The last, because it writes a page whose name is that of the missing file of others.
        "compare_reports": of(
            callbacks.compare_reports, {"paths": str(run)}, paths="nothing", output="path or none"
        ),
    }


OTHERS = ("Optimizer", "OptimizerMap", "LossScaleOptimizer", "MultiOptimizer")

KERAS_CHECKS = "Keras checks its arguments"
IN_EVERY_STEP = "is called in every step, and takes what a fit has"
RESULT, ELSEWHERE = "is made by the library, to be read", "has a table of its own in this folder"
# Public names that are missing in the table, with the reason.
NOT_HERE = {
    **_same(RESULT, "BackupInfo", "Diagnosis", "NonFinite"),
    **_same(KERAS_CHECKS, "Model", "Sequential", "Optimizer", "serialize", "deserialize", "model_from_json"),
    **_same(
        "has none", "Callback", "global_policy", "is_chief", "num_workers", "updates_so_far", "worker_index"
    ),
    **_same(ELSEWHERE, "ParameterServerStrategy", "global_mean", "gather", "policy_scope"),
    "register_launcher": "its own tests try it",
    **_same(IN_EVERY_STEP, "check_progress", "monitored_collective"),
    "batch_statistics": "takes any batch",
    "grow_gpu_memory": "needs devices that are not in use",
}
# Arguments that are missing in the table, with the reason.
UNCHECKED = {
    **_same(ELSEWHERE, "monitor", "profile_batch", "gradient_aggregator", "loss", "batch"),
    **_same(ELSEWHERE, "custom_objects", "compile", "safe_mode", "loss_scale", "min_scale", "max_scale"),
    "mode": "any other word than min and max is warned of and means auto, as in Keras",
    "embeddings_metadata": "is a file name or a dict of layers, which Keras checks",
    **_same("means what it means in Keras", "exclude_layers", "rms_rate"),
    "name": "any text",
    **_same("a batch of any structure", "x", "y"),
}
