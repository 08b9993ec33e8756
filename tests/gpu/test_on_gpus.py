"""Guarantees for any device, on GPUs: single-device results, skipped steps, resumed fits, placement of data and weights."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from gpu_copies import equal_copies
from helpers import assert_equal
from peak_memory import PeakMemory
from tensorflow.python.framework import config

import unisono
from unisono.distribute.hardware.data_placement import keep_data_on
from unisono.optimizers.stages.sparse_gradients import merge_rows
from unisono.trainer.run.loops.compiled import GRAPH, XLA

TOLERANCE = 2e-5  # float32 without TensorFloat-32: another summation order
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(70, 8)).astype("float32")
Y = RANDOM.integers(0, 3, 70).astype("int32")


@pytest.fixture(autouse=True)
def exact_float32():
    enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    unisono.mixed_precision.enable_tensor_float_32(False)
    yield
    unisono.mixed_precision.enable_tensor_float_32(enabled)
    keep_data_on()


def mirrored(gpus):
    virtual = len(tf.config.list_physical_devices("GPU")) < len(gpus)
    reduction = tf.distribute.ReductionToOneDevice() if virtual else None
    return tf.distribute.MirroredStrategy(gpus, cross_device_ops=reduction)


def compiled(strategy, **options):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = unisono.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, "relu", name="hidden"),
                keras.layers.Dense(3, dtype="float32", name="logits"),
            ],
            name="model",
        )
        accumulation = options.pop("accumulation", None)
        optimizer = unisono.optimizers.Adam(
            1e-2, global_clipnorm=1.0, gradient_accumulation_steps=accumulation
        )
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


def trained(strategy, data=None, epochs=2, **options):
    model = compiled(strategy, **options)
    arguments = {"x": X, "y": Y, "batch_size": 16} if data is None else {"x": data()}
    history = model.fit(**arguments, epochs=epochs, verbose=0).history
    return model, history["loss"]


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)


def generator():
    for start in range(0, 70, 16):
        yield X[start : start + 16], Y[start : start + 16]


def assert_same(model, expected):
    for ours, theirs in zip(model.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("place", ["device", "host"])
def test_arrays_on_two_gpus_give_the_numbers_of_one_wherever_they_live(gpus, place):
    keep_data_on(place)
    two, losses = trained(mirrored(gpus[:2]))
    one, expected = trained(tf.distribute.OneDeviceStrategy(gpus[0]))
    assert_same(two, one)
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)
    equal_copies(two)


@pytest.mark.parametrize("data", [dataset, generator])
def test_other_inputs_on_two_gpus_give_the_numbers_of_one(gpus, data):
    epochs = 1 if data is generator else 2
    two, _ = trained(mirrored(gpus[:2]), data, epochs)
    one, _ = trained(tf.distribute.OneDeviceStrategy(gpus[0]), data, epochs)
    assert_same(two, one)


def test_class_weights_and_evaluation_and_prediction_on_two_gpus_are_those_of_one(gpus):
    models = [compiled(s) for s in (mirrored(gpus[:2]), tf.distribute.OneDeviceStrategy(gpus[0]))]
    for model in models:
        keras.utils.set_random_seed(4)  # the order of the samples
        model.fit(X, Y, batch_size=16, verbose=0, class_weight={0: 2.0, 1: 0.5}, validation_data=(X, Y))
    assert_same(*models)
    losses = [model.evaluate(X, Y, batch_size=16, verbose=0) for model in models]
    np.testing.assert_allclose(losses[0], losses[1], rtol=TOLERANCE)
    first, second = (model.predict(X, batch_size=16, verbose=0) for model in models)
    np.testing.assert_allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("rows", [5000, 50])
def test_copies_of_a_table_stay_equal_where_many_samples_name_a_row(gpus, rows, eager):
    tokens = (RANDOM.zipf(1.3, (200, 30)) % rows).astype("int32")
    with mirrored(gpus[:2]).scope():
        model = unisono.Sequential(
            [
                keras.Input((30,), dtype="int32"),
                keras.layers.Embedding(rows, 16),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(unisono.optimizers.Adam(0.05), loss, run_eagerly=eager)
    model.fit(tokens, tokens[:, 0] % 3, batch_size=50, epochs=2, verbose=0)
    equal_copies(model)


def test_rows_of_a_sparse_gradient_have_the_same_sums_each_time(gpus):
    values = RANDOM.normal(size=(20000, 33)).astype("float32")
    indices = (RANDOM.zipf(1.2, 20000) % 500).astype("int64")
    with tf.device(gpus[0]):

        @tf.function
        def sums():
            return merge_rows(tf.IndexedSlices(values, indices, tf.constant([500, 33]))).values

        first = sums().numpy()
        assert all(np.array_equal(first, sums()) for _ in range(20))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_trains_and_keeps_float32_variables(gpus, policy):
    unisono.mixed_precision.set_global_policy(policy)
    model, losses = trained(mirrored(gpus[:2]), epochs=8)
    assert losses[-1] < losses[0]
    assert {v.dtype for v in model.weights} == {"float32"}
    equal_copies(model)


@pytest.mark.parametrize("steps", [None, 2])
def test_step_that_overflows_leaves_every_bit_of_weights_and_optimizer_state(gpus, steps):
    unisono.mixed_precision.set_global_policy("mixed_float16")
    model = compiled(mirrored(gpus[:2]), accumulation=steps)
    model.fit(X, Y, batch_size=70, verbose=0, epochs=2)
    inner = model.optimizer.inner_optimizer
    before = [v.numpy().tobytes() for v in (*model.weights, *inner.variables)]
    skipped = int(model.optimizer.skipped_steps.numpy())
    huge = X.copy()
    huge[-1] = 1e30  # a sample of the last replica
    model.fit(huge, Y, batch_size=70, verbose=0, epochs=steps or 1)
    assert [v.numpy().tobytes() for v in (*model.weights, *inner.variables)] == before
    assert int(model.optimizer.skipped_steps.numpy()) == skipped + 1
    model.fit(X, Y, batch_size=70, verbose=0, epochs=steps or 1)
    assert [v.numpy().tobytes() for v in model.weights] != before[: len(model.weights)]


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.fit_state.epoch == 1 and batch >= 2:
            raise KeyboardInterrupt


@pytest.fixture
def deterministic():
    """By default some kernels of GPUs add in another order each time."""
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


def test_resumed_fit_has_the_bits_of_one_that_was_not_stopped(gpus, deterministic, tmp_path):
    strategy = mirrored(gpus[:2])
    options = {"batch_size": 16, "epochs": 3, "verbose": 0}
    whole = compiled(strategy)
    whole.fit(X, Y, callbacks=[unisono.callbacks.BackupAndRestore(tmp_path / "a", save_freq=1)], **options)
    stopped = compiled(strategy)
    backup = unisono.callbacks.BackupAndRestore(tmp_path / "b", save_freq=1)
    with contextlib.suppress(KeyboardInterrupt):
        stopped.fit(X, Y, callbacks=[backup, Stop()], **options)
    resumed = compiled(strategy)
    resumed.fit(X, Y, callbacks=[unisono.callbacks.BackupAndRestore(tmp_path / "b", save_freq=1)], **options)
    assert_equal(resumed.get_weights(), whole.get_weights())


@pytest.mark.parametrize("place", ["device", "host"])
def test_xla_is_the_default_from_the_first_step_on(gpus, place):
    keep_data_on(place)
    model = compiled(tf.distribute.OneDeviceStrategy(gpus[0]))
    plain = compiled(tf.distribute.OneDeviceStrategy(gpus[0]), jit_compile=False)
    for each in (model, plain):
        keras.utils.set_random_seed(4)
        each.fit(X, Y, batch_size=16, epochs=4, verbose=0)
    assert (model.train_function.backend, plain.train_function.backend) == (XLA, GRAPH)
    assert_same(model, plain)


@pytest.mark.parametrize("known", ["length", "sizes", "nothing"])
def test_xla_compiles_the_steps_of_pipelines(gpus, known):
    def data():
        if known == "nothing":
            spec = tf.TensorSpec((None, 8), "float32"), tf.TensorSpec((None,), "int32")
            return tf.data.Dataset.from_generator(generator, output_signature=spec)
        return dataset() if known == "length" else dataset().filter(lambda x, y: True)

    xla, _ = trained(tf.distribute.OneDeviceStrategy(gpus[0]), data)
    plain, _ = trained(tf.distribute.OneDeviceStrategy(gpus[0]), data, jit_compile=False)
    assert (xla.train_function.backend, plain.train_function.backend) == (XLA, GRAPH)
    assert_same(xla, plain)


def test_where_arrays_live_is_said_in_one_line(gpus, capsys):
    keep_data_on("device")
    compiled(mirrored(gpus[:2])).fit(X, Y, batch_size=16, verbose=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("The arrays")]
    assert lines == ["The arrays (2 KiB) are on 2 GPUs, as keep_data_on requires."]


def test_validation_on_the_training_arrays_holds_no_second_copy(gpus):
    keep_data_on("device")
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            state = self.model.fit_state
            seen.extend((state.source.held, state.validation.held))

    compiled(mirrored(gpus[:2])).fit(
        X, Y, batch_size=16, verbose=0, validation_data=(X, Y), callbacks=[Look()]
    )
    training, validation = seen
    assert [validation[key][1] for key in (id(X), id(Y))] == [training[key][1] for key in (id(X), id(Y))]


def test_fit_holds_weights_and_optimizer_state_once(gpus):
    """Also in memory: gradients and temporaries of an update; a fit that creates the optimizer state and one that has it."""
    with tf.device(gpus[0]):
        model = unisono.Sequential([keras.Input((2048,)), keras.layers.Dense(16384), keras.layers.Dense(1)])
    model.compile(unisono.optimizers.Adam(), "mse", jit_compile=False)
    x = np.zeros((64, 2048), "float32")
    weights = sum(v.numpy().nbytes for v in model.trainable_weights)
    memory = PeakMemory([gpus[0]])
    beside = 1.8 if "CPU" in gpus[0] else 2.5  # measured on CPUs: 1.3, then 1.0; GPU work is queued ahead
    for slots in (2 * weights, 0):
        memory.reset()
        before = memory.most()
        model.fit(x, x[:, :1], batch_size=32, verbose=0, validation_data=(x, x[:, :1]))
        assert memory.most() - before < slots + beside * weights


def test_gradients_of_physical_gpus_are_summed_by_nccl(physical):
    names = [f"GPU:{index}" for index in range(len(physical(2)))]
    strategy = tf.distribute.MirroredStrategy(names)
    assert strategy.extended._collective_ops._options.implementation.value == "NCCL"
    several, _ = trained(strategy)
    one, _ = trained(tf.distribute.OneDeviceStrategy("GPU:0"))
    assert_same(several, one)
    for dtype in ("int32", "int64", "float16", "float32", "float64", "bfloat16"):

        @tf.function
        def total(dtype=dtype):
            def on_replica():
                context = tf.distribute.get_replica_context()
                return context.all_reduce("SUM", tf.cast(tf.fill([3], 2), dtype))

            return strategy.run(on_replica)

        for value in strategy.experimental_local_results(total()):
            np.testing.assert_array_equal(tf.cast(value, "float64"), 2.0 * len(names))
