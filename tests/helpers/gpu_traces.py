"""Traces steps for two simulated GPUs, has TensorFlow place them, and prints the results as JSON, one object for each case.

Runs in a separate process (see `PretendedMachine`).
"""

import functools
import json
import sys

import keras
import numpy as np
import tensorflow as tf
from absent_gpus import HOST, MACHINE, PretendedMachine, absent_gpus
from custom_step import CustomStep
from helpers import source_of
from tensorflow.python.framework import kernels

import unisono
from unisono.distribute.hardware.data_placement import keep_data_on
from unisono.trainer.compilation import runner_of
from unisono.trainer.run.loops.compiled import XLA

L = keras.layers
X = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
Y = np.random.default_rng(2).integers(0, 3, 64).astype("int32")
TOKENS = np.random.default_rng(3).integers(0, 20, (64, 6)).astype("int32")
IMAGES = np.random.default_rng(4).normal(size=(64, 8, 8, 1)).astype("float32")
GPUS = [f"{MACHINE}/device:GPU:{i}" for i in range(2)]


def compiled(strategy, accumulation=None, **options):
    with strategy.scope():
        model = unisono.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, "relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3, seed=1),
                keras.layers.Dense(3, dtype="float32"),
            ]
        )
        optimizer = unisono.optimizers.AdamW(1e-3, gradient_accumulation_steps=accumulation, clipnorm=1.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            optimizer,
            loss,
            metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True)],
            **options,
        )
    return model


class LogsNorm(CustomStep):
    def more_logs(self, gradients):
        return {"norm": tf.linalg.global_norm(gradients)}


def text(strategy, rows=20, cls=unisono.Model, **options):
    """A transformer; its token table has more rows than a batch has tokens, or fewer."""
    with strategy.scope():
        tokens = keras.Input((None,), dtype="int32")
        x = L.Embedding(rows, 8, mask_zero=True)(tokens)
        x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4, dropout=0.1)(x, x, use_causal_mask=True))
        x = L.Dense(8, "gelu")(x)
        model = cls(tokens, L.Dense(3)(L.GlobalAveragePooling1D()(x)))
        return with_metrics(model, unisono.optimizers.Adam(1e-3, **options))


def pictures(strategy, **options):
    with strategy.scope():
        image = keras.Input((8, 8, 1))
        x = L.RandomRotation(0.1)(L.RandomTranslation(0.1, 0.1)(L.RandomFlip()(image)))
        x = L.MaxPooling2D()(L.LayerNormalization()(L.Conv2D(2, 3)(x)))
        model = unisono.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(x)))
        return with_metrics(model, unisono.optimizers.SGD(0.1, **options))


def with_metrics(model, optimizer):
    own = type(model) is LogsNorm
    metrics = [] if own else ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=metrics)
    return model


def first_chunk(model, x, y, shuffle=True):
    arguments = {"batch_size": 8, "shuffle": shuffle} if isinstance(x, np.ndarray) else {}
    source = source_of(x, y, strategy=model.distribute_strategy, **arguments)
    source.begin_epoch(0)
    return source, source.take(4)


def devices_of_inputs(source, chunk):
    """The devices on which the leaves of the chunk's inputs would be."""
    homes = getattr(source, "devices", ("CPU:0",))
    if homes == ("CPU:0",):
        return [HOST for _ in tf.nest.flatten(chunk.inputs)]
    if len(homes) == 1:
        return [GPUS[0] if leaf.shape.rank else HOST for leaf in tf.nest.flatten(chunk.inputs)]
    copies, place = chunk.inputs
    each = [GPUS[n] for n, copy in enumerate(copies) for _ in tf.nest.flatten(copy)]
    orders = [GPUS[n] for n in range(len(copies))] if isinstance(place, tuple) else []
    return [*each, *orders, HOST]


def step_of(model, training=True, x=X, y=Y, way=None, shuffle=True):
    """The placed loop over steps of `fit` or `evaluate`."""
    source, chunk = first_chunk(model, x, y, shuffle)
    runner = runner_of(model)
    runner.build(model, source.spec, source.batch_size)
    function = runner.function(model, "train" if training else "test")
    model.train_function = function
    function.full_size = source.batch_size
    function.backend = way or function.backend
    found, _ = function.find_compiled(chunk)
    loop = found.graphs[0]
    signed = chunk.signature is not None and not chunk.open_ended
    concrete = loop.get_concrete_function(*(() if signed else found.arguments(chunk)))
    return machine.place(concrete, devices_of_inputs(source, chunk))


def prediction_of(model):
    source, chunk = first_chunk(model, X, None, shuffle=False)
    runner = runner_of(model)
    runner.build(model, source.spec, step="predict_step")
    predictions = runner.function(model, "predict").find_compiled(chunk)[0].function
    traced = predictions.graphs[0].get_concrete_function(chunk.inputs, tf.constant(0))
    return machine.place(traced, devices_of_inputs(source, chunk))


@functools.cache
def lacks_kernel(operation):
    """Whether an operation has kernels, but none for GPUs."""
    devices = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(operation).kernel}
    return bool(devices) and not devices & {"GPU", "DEFAULT"}


def described(placed):
    """The properties that tests check."""
    collectives = placed.of("CollectiveReduceV2", "CollectiveGatherV2", "NcclAllReduce")
    return {
        "host": sorted({node.op for node in placed.host_operations() if placed.in_step(node)}),
        "host_before_update": placed.host_between_forward_and_update(),
        "waits": [wait for wait in placed.waits() if not wait.startswith("Less")],
        "between_gpus": sorted(
            f"{t.dtype} {t.producer}" for t in placed.transfers if {t.source, t.target} == {"GPU:0", "GPU:1"}
        ),
        "sent": [
            f"{t.dtype}{placed.shape(t.producer)}" for t in placed.transfers if placed.is_sent_each_step(t)
        ],
        "collectives": [
            [
                node.device[-5:],
                tf.as_dtype(node.attr["T"].type).name,
                node.attr["communication_hint"].s.decode(),
            ]
            for node in collectives
        ],
        "without_kernel": sorted(filter(lacks_kernel, {node.op for node in placed.on("GPU")})),
        "gpu": {
            device: sum(node.device.endswith(device) for node in placed.nodes.values())
            for device in ("GPU:0", "GPU:1")
        },
    }


def dataset(equal=True, x=X):
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(8, drop_remainder=equal)


def rows():
    for start in range(0, 64, 8):
        yield X[start : start + 8], Y[start : start + 8]


def cases(two, one):
    keep_data_on("device")
    yield "fit on 2", lambda: step_of(compiled(two))
    yield "fit in order on 2", lambda: step_of(compiled(two), shuffle=False)
    yield "evaluate on 2", lambda: step_of(compiled(two), training=False)
    yield "predict on 2", lambda: prediction_of(compiled(two))
    yield "accumulation on 2", lambda: step_of(compiled(two, accumulation=2))
    yield "accumulation on 1", lambda: step_of(compiled(one, accumulation=2))
    yield "XLA on 2", lambda: step_of(compiled(two), way=XLA)
    yield "fit on 1", lambda: step_of(compiled(one))
    yield "XLA on 1", lambda: step_of(compiled(one), way=XLA)
    yield "tf.data on 2", lambda: step_of(compiled(two), x=dataset(), y=None)
    yield "tf.data of any size on 2", lambda: step_of(compiled(two), x=dataset(equal=False), y=None)
    yield "generator on 2", lambda: step_of(compiled(two), x=rows(), y=None)

    def in_stages():
        pipeline = unisono.distribute.Pipeline(names, micro_batches=2)
        return step_of(compiled(pipeline))

    yield "pipeline on 2", in_stages

    def half(accumulation=None, strategy=two):
        keras.config.set_dtype_policy("mixed_float16")
        return step_of(compiled(strategy, accumulation))

    yield "mixed_float16 on 2", half
    yield "accumulation in mixed_float16 on 2", lambda: half(accumulation=2)
    shards = unisono.distribute.sharded(tf.distribute.MirroredStrategy(names), "weights")
    yield "shards accumulated in mixed_float16 on 2", lambda: half(accumulation=2, strategy=shards)
    keras.config.set_dtype_policy("float32")
    yield "shards of text on 2", lambda: step_of(text(shards, gradient_accumulation_steps=2), x=TOKENS)
    yield "text of many words on 2", lambda: step_of(text(two, rows=1000), x=TOKENS)
    yield "text of many words under XLA on 2", lambda: step_of(text(two, rows=1000), x=TOKENS, way=XLA)
    any_tokens, any_images = dataset(equal=False, x=TOKENS), dataset(equal=False, x=IMAGES)
    yield "text of any size on 2", lambda: step_of(text(two, rows=1000), x=any_tokens, y=None)
    yield "evaluate text on 2", lambda: step_of(text(two), training=False, x=TOKENS)
    yield "custom step on 2", lambda: step_of(text(two, cls=LogsNorm), x=TOKENS)
    averaged = {"use_ema": True, "ema_overwrite_frequency": 3}
    yield (
        "averaged pictures of any size on 2",
        lambda: step_of(pictures(two, **averaged), x=any_images, y=None),
    )
    keep_data_on("host")
    yield "fit from the host on 2", lambda: step_of(compiled(two))
    yield "fit from the host on 1", lambda: step_of(compiled(one))
    yield "XLA from the host on 1", lambda: step_of(compiled(one), way=XLA)


machine = PretendedMachine(2)
with absent_gpus(2) as names:
    mirrored = tf.distribute.MirroredStrategy(names)
    for name, trace in cases(mirrored, tf.distribute.get_strategy()):
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        print(json.dumps({"case": name, **described(trace())}), flush=True)
