"""Wrong uses of strategies, pipelines, parameter servers, policies, environment variables and commands."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

from unisono.distribute.environment import peer_timeout, replicas_per_worker
from uses.bench import NAN, Bench, Use, X, Y, keras, tf, unisono

distribute, precision = unisono.distribute, unisono.mixed_precision
Servers, Pipeline = distribute.ParameterServerStrategy, distribute.Pipeline
global_batch_size, global_mean = distribute.global_batch_size, distribute.global_mean
AB = ["CPU:0", "CPU:1"]
CentralStorage = tf.distribute.experimental.CentralStorageStrategy
KNOWN_POLICIES = "use one of 'mixed_float16', 'mixed_bfloat16', 'float32', 'float64'"


def call(function: Callable[..., Any], *words: str, given: tuple[Any, ...] = (), **named: Any) -> Use:
    return lambda bench: function(*given, **named), words


def _each(
    name: str, function: Callable[[Any], Any], argument: str, cure: str, *values: Any
) -> dict[str, Use]:
    return {
        f"{name} {argument} {v!r}": (lambda b, v=v: function(v), (f"`{argument}`", cure, re.escape(repr(v))))
        for v in values
    }


def _resolver() -> Any:
    jobs = {"worker": ["localhost:1"], "ps": ["localhost:2"], "chief": ["localhost:3"]}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), rpc_layer="grpc", task_type="chief", task_id=0
    )


def _fit_under(make: Callable[[], Any]) -> Callable[[Bench], Any]:
    def run(bench: Bench) -> Any:
        with make().scope():
            return bench.compiled()

    return run


def _pipeline(then: Callable[[Any, Any], Any], *given: Any, **named: Any) -> Callable[[Bench], Any]:
    def run(bench: Bench) -> Any:
        pipeline = Pipeline(*given, **named)
        with pipeline.scope():
            layers = [keras.layers.Dense(2, name=name) for name in "ab"]
            model = unisono.Sequential([keras.Input((3,)), *layers])
            model.compile("sgd", "mse")
        return then(pipeline, model)

    return run


def _fit(pipeline: Any, model: Any) -> Any:
    return model.fit(X, Y, verbose=0)


def _with_variable(name: str, value: str, function: Callable[[], Any]) -> Callable[[Bench], Any]:
    def run(bench: Bench) -> Any:
        with mock.patch.dict(os.environ, {name: value}):
            return function()

    return run


STRATEGIES: dict[str, Use] = {
    **{
        f"{name} on no {device}": (_fit_under(lambda make=make, of=of: make(*of)), (name, device, words))
        for name, make, of, device, words in (
            ("OneDevice", tf.distribute.OneDeviceStrategy, ["GPU:9"], "GPU:9", "there are"),
            ("Mirrored", tf.distribute.MirroredStrategy, [["GPU:9"]], "GPU:9", "does not exist"),
            ("Mirrored", tf.distribute.MirroredStrategy, [["CPU:0", "CPU:9"]], "CPU:9", "does not exist"),
            ("Central", CentralStorage, [["GPU:8", "GPU:9"], "CPU:0"], "GPU:8", "does not exist"),
        )
    },
    "Mirrored in two halves of three": (
        _fit_under(
            lambda: tf.distribute.MirroredStrategy(
                [f"CPU:{n}" for n in range(3)], cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
            )
        ),
        ("cross_device_ops=HierarchicalCopyAllReduce", "of 3:", "even number"),
    ),
    **_each(
        "auto_strategy", distribute.auto_strategy, "communication_options", "CommunicationOptions", 7, "nccl"
    ),
    **_each("global_batch_size", global_batch_size, "per_replica", "whole number", 0, "8", 2.5, None, True),
    **_each("global_batch_size", lambda v: global_batch_size(8, v), "strategy", "Strategy", 3, "mirrored"),
    **_each("simulate_devices", distribute.simulate_devices, "count", "whole number", 0, "2", 1.5, None),
    "simulate_devices too late": call(distribute.simulate_devices, "`count`", "9", "before", given=(9,)),
    **_each("global_mean", global_mean, "values", "tensor of numbers", "a", None),
    **_each("global_mean", lambda v: global_mean([1.0], v), "sample_weight", "numbers", "a"),
    **_each("global_mean", lambda v: global_mean([1.0], reduction=v), "reduction", "mean_with", "sum", None),
    "global_mean of unequal": call(
        global_mean, "`sample_weight`", r"\(3,\)", "one weight", given=([1.0, 2.0], [1.0] * 3)
    ),
    **_each("gather", distribute.gather, "values", "tensor", "a", None),
    "ParameterServers without cluster": call(Servers, "`cluster_resolver`", "TF_CONFIG", "launch"),
    **_each("ParameterServers", Servers, "cluster_resolver", "ClusterResolver", 3, "localhost:1"),
    **{
        f"ParameterServers {name}={v!r}": (
            lambda b, name=name, v=v: Servers(_resolver(), **{name: v}),
            (f"`{name}`", cure, re.escape(repr(v))),
        )
        for name, cure, values in (
            ("max_staleness", "whole number", (0, "2", 1.5)),
            ("backup_workers", "MultiWorkerMirroredStrategy", (0, 1, "a")),
            ("timeout", "above 0", (0, -1, NAN, "60", True)),
            ("variable_partitioner", "Partitioner", (3,)),
        )
        for v in values
    },
}

PIPELINES: dict[str, Use] = {
    **_each("Pipeline", lambda v: Pipeline(v, 2), "devices", "at least one name", "CPU:0", [], None),
    **{
        f"Pipeline on {v!r}": (
            lambda b, v=v: Pipeline(["CPU:0", v], 2),
            ("`devices`", "does not exist: there are", re.escape(repr(v))),
        )
        for v in (3, "GPU:9", "nonsense", None, "")
    },
    "Pipeline on another process": call(
        Pipeline, "launch --stages K", given=(["/job:worker/task:1/device:CPU:0"], 2)
    ),
    **_each("Pipeline", lambda v: Pipeline(AB, v), "micro_batches", "whole number", 0, 1.5, "8", None),
    **{
        f"Pipeline {name}={v!r}": (
            lambda b, name=name, v=v: Pipeline(AB, 2, **{name: v}),
            (f"`{name}`", cure, re.escape(str(v))),
        )
        for name, cure, values in (
            ("schedule", '"1f1b" or "gpipe"', ("zigzag", None, 3)),
            (
                "partition",
                "positive numbers of layers",
                ("equal", 3, [0, 3], [1.5, 1], ["a", "b", "c"], [], None),
            ),
            ("cost", '"estimated" or "measured"', ("guess", None)),
            ("rematerialize", "True or False", ("yes", 2)),
            ("memory_limit", "above 0", (-1, NAN, "1G", True, 0)),
            ("replicas", "whole number", (0, "2", 1.5)),
        )
        for v in values
    },
    "Pipeline of odd replicas": call(Pipeline, "`devices`", "divisible", "3", given=(AB, 2), replicas=3),
    "Pipeline of more layers": (_pipeline(_fit, AB, 2, partition=[1, 5]), ("partition", r"\[1, 5\]", "2")),
    "Pipeline of unknown layers": (_pipeline(_fit, AB, 2, partition=["zzz"]), ("partition", "zzz", "")),
    "Pipeline of too many stages": (
        _pipeline(_fit, ["CPU:0"] * 4, 2),
        (r"devices \(4 stages\) must not be more than the layers of model .* \(2\)",),
    ),
    "Pipeline in little memory": (
        _pipeline(_fit, AB, 2, memory_limit=1),
        ("memory_limit", "1", "is too small for 2 stages"),
    ),
    "Pipeline of small batches": (
        _pipeline(lambda _, model: model.fit(X, Y, batch_size=6), AB * 2, 4, replicas=2),
        (r"`batch_size` \(6\) must be at least `micro_batches` \(4\) \* `replicas` \(2\)",),
    ),
    "Pipeline summary of nothing": (lambda b: Pipeline(AB, 2).summary(), ("model", "None", "scope")),
    **{
        f"Pipeline timeline of {what}": (_pipeline(lambda p, m, v=v: p.timeline(m, v), AB, 2), words)
        for what, v, words in (
            ("text", "a", ("`transfer`", "'a'", "number")),
            ("cuts", [1.0, 2.0], ("transfer", "2", "1")),
        )
    },
}

PRECISION: dict[str, Use] = {
    **{
        f"policy {given}": call(precision.set_global_policy, *words, given=given)
        for given, words in (
            *(
                ((name,), (f"{name!r}", KNOWN_POLICIES))
                for name in ("mixed_float8", "half", "", "float17", "mixed_float32", "int8", "int32")
            ),
            ((None,), ("name", "None", "'mixed_float16'")),
            ((tf.float16,), ("name", "float16", "'mixed_float16'")),
            (("float16",), ("'float16'", "lose small updates", "use 'mixed_float16'")),
            *(
                (("mixed_float16", scale), ("loss_scale", re.escape(repr(scale)), "positive"))
                for scale in (0, -1, NAN, float("inf"), True, [1.0])
            ),
            (("mixed_float16", "static"), ("`loss_scale` must be 'dynamic', a positive number", "'static'")),
            *(
                ((name, 8.0), (f"loss_scale=8.* '{name}'", "leave `loss_scale` out"))
                for name in ("mixed_bfloat16", "float32", "float64")
            ),
        )
    },
    "policy_scope of 3": (lambda b: precision.policy_scope(3).__enter__(), ("name", "3", "'mixed_float16'")),
    "tensor float text": call(
        precision.enable_tensor_float_32, "enabled", "'yes'", "True or False", given=("yes",)
    ),
    "diagnose a number": call(precision.diagnose, "`model`", "3", "keras.Model", given=(3, (X, Y))),
    "diagnose None": (lambda b: precision.diagnose(b.model, None), ("`batch`", "None", "one batch")),
    **{
        f"diagnose a {what}": (lambda b, named=named: precision.diagnose(b.model, (X, Y), **named), words)
        for what, named, words in (
            ("loss name", {"loss": "mse"}, ("`loss`", "'mse'", "function")),
            ("scale", {"loss_scale": -1}, ("loss_scale", "-1", "positive")),
        )
    },
}

ENVIRONMENT: dict[str, Use] = {
    f"{name}={text}": (_with_variable(name, text, function), (name, *words))
    for name, function, cases in (
        (
            "UNISONO_TIMEOUT",
            peer_timeout,
            {text: (repr(text), "from 1 to") for text in ("soon", "0", "-5", "nan", "inf", "1e300")},
        ),
        (
            "UNISONO_REPLICAS_PER_WORKER",
            replicas_per_worker,
            {text: (repr(text), "whole number") for text in ("0", "two", "1.5", "-1")},
        ),
        (
            "TF_CONFIG",
            distribute.auto_strategy,
            {
                "no json": ("",),
                "[]": ("",),
                '{"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}}': ("",),
                '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 7}}': ("7",),
                '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "boss", "index": 0}}': ("boss",),
                '{"cluster": {"worker": ["a", "b:1"]}, "task": {"type": "worker", "index": 0}}': ("port",),
            },
        ),
    )
    for text, words in cases.items()
}

MOUNTED = "must be in a local or mounted file system"
# Command lines (SCRIPT is a file that exists), and what their one line of output must say.
_LINES: dict[str, tuple[str, ...]] = {
    "no script": ("launch", "required: script"),
    "missing script": (
        "launch nope.py",
        "unisono launch: there is no file 'nope.py' to run",
        "see `python -m unisono launch --help`",
    ),
    "no workers": ("launch --workers 0 SCRIPT", "--workers", "must be at least 1, received 0"),
    "workers of text": ("launch --workers two SCRIPT", "--workers.*: invalid whole number value: 'two'"),
    "negative restarts": ("launch --restarts -1 SCRIPT", "--restarts", "must be at least 0, received -1"),
    "negative servers": ("launch --parameter-servers -1 SCRIPT", "--parameter-servers", "at least 0"),
    "no replicas": ("launch --replicas-per-worker 0 SCRIPT", "--replicas-per-worker", "at least 1"),
    "no timeout": ("launch --timeout 0 SCRIPT", "--timeout", "from 1 to", "0"),
    "timeout of NaN": ("launch --timeout nan SCRIPT", "--timeout", "from 1 to", "nan"),
    "unknown option": ("launch --worker-count 2 SCRIPT", "--worker-count"),
    "logs in a file": ("launch --log-dir SCRIPT SCRIPT", "--log-dir must be a folder. Received the file"),
    "logs nowhere": (
        "launch --log-dir /proc/no/x SCRIPT",
        r"--log-dir: the folder '/proc/no/x' cannot be created \(No such",
    ),
    "logs in a bucket": ("launch --log-dir gs://bucket/logs a.py", MOUNTED, "gs://bucket"),
    "profile into a file": (
        "profile --service 127.0.0.1:1 --log-dir SCRIPT",
        "--log-dir must be a folder. Received the file",
    ),
    "profile into a bucket": ("profile --service a:1 --log-dir gs://bucket/logs", MOUNTED, "gs://bucket"),
    "backups of nothing": ("backups", "unisono backups: the following arguments are required: directory"),
    "backups in a bucket": ("backups abc://bucket/b", "fsspec does not know", "abc://bucket"),
    "report of nothing": ("report nope.jsonl", "nope.jsonl does not exist"),
    "report of a bucket": ("report gs:/bucket/run", "lost a slash", "gs:/bucket"),
    "report into a bucket": ("report . --output s3://bucket/a.html", MOUNTED, "s3://bucket"),
}
COMMANDS = {
    name: ([__file__ if word == "SCRIPT" else word for word in line.split()], words)
    for name, (line, *words) in _LINES.items()
}
