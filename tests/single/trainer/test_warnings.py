"""No warning of the library is raised for the most similar correct program.

`NEIGHBOURS` lists, for each function that warns, the correct program in this file that is closest to its warning condition.
These tests turn warnings into errors; a fixture checks the logs.
"""

from __future__ import annotations

import ast
import collections
import logging
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import GradientsOfItsOwn, Stop, StopAt, as_in_new_process, mirrored, source_of

import unisono
from unisono import callbacks
from unisono.callbacks.output_paths import check_launched_alone
from unisono.compat.tensorflow_private import tf_data
from unisono.distribute import automatic
from unisono.distribute.hardware.program_cache import ProgramCache
from unisono.mixed_precision import hardware
from unisono.trainer.inputs import same_input
from unisono.trainer.inputs.sources.dataset_source import DatasetSource, Elements

ROOT = Path(unisono.trainer.__file__).parents[1]
PACKAGES = (
    "callbacks",
    "compat",
    "distribute",
    "mixed_precision",
    "optimizers",
    "state",
    "trainer",
    "unisono",
)
WARNING_CALLS = ("warn", "warning", "_warn")

NEIGHBOURS = {
    "fit to every limit": [
        "compat/patches.py wrap",
        "trainer/inputs/position.py end_epoch",
        "trainer/inputs/sources/make_source.py make_source",
        "trainer/inputs/given_data.py limit_steps",
        "trainer/run/fit_begin.py _cap",
        "trainer/run/loops/loop_choice.py _or_graph",
        "trainer/run/loops/loop_choice.py run",
        "trainer/run/passes.py _warn_of_nan",
        "trainer/run/slow_steps.py end_call",
        "trainer/run/slow_steps.py _watch_call",
        "trainer/run/slow_steps.py _warn",
        "trainer/compile_checks.py _check_outputs",
        "trainer/compilation.py compile",
        "callbacks/monitoring/profiler.py on_train_end",
        "callbacks/diagnosis/anomaly_report.py _explain",
        "callbacks/saving/model_checkpoint.py _is_wanted",
        "callbacks/saving/model_checkpoint.py on_fit_exit",
        "callbacks/backup/files/background.py settle",
        "callbacks/spool.py __exit__",
        "callbacks/spool.py _tick",
        "callbacks/saving/checkpoint_files.py keep_foreign_file",
        "compat/tensorflow_private/tf_data.py _wait_for_ends",
    ],
    "first call with a folder of its own": [
        "distribute/hardware/program_cache.py _keep_new",
        "distribute/hardware/program_cache.py _make_private",
        "distribute/hardware/program_cache.py _warn",
    ],
    "resumed fit": [
        "callbacks/backup/exactness.py check",
        "callbacks/backup/backup_and_restore.py _resume",
        "callbacks/backup/backup_and_restore.py on_fit_exit",
        "callbacks/backup/callback_state.py _set_csv_state",
        "state/random_state.py find_reached",
    ],
    "inputs at the position they are at": [
        "trainer/inputs/sources/python_inputs.py restore",
        "trainer/inputs/sources/dataset_source.py restore",
    ],
    "one input made by two workers": [
        "trainer/inputs/same_input.py check_same_data",
        "trainer/inputs/same_input.py check_same_input",
    ],
    "custom step on two replicas": [
        "trainer/partition/steps/step_partition.py _trace",
        "trainer/partition/steps/step_partition.py _say",
    ],
    "one process with devices of one kind": [
        "callbacks/output_paths.py check_launched_alone",
        "distribute/automatic.py _warn_of_mixed_models",
        "distribute/workers/joining.py _warn_of_one_core",
        "distribute/workers/places.py warn_of_unknown_size",
        "mixed_precision/policy.py _explain",
        "mixed_precision/hardware.py warn_if_slow",
    ],
    "layout map whose patterns name variables": ["trainer/run/build.py check_layouts"],
    "pipeline of layers that compute each sample alone": [
        "trainer/pipeline/pipeline_runner.py warn_of_mixed_samples"
    ],
    "gradients for all that is trained": ["optimizers/optimizer_checks.py with_gradients"],
}


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog):
    caplog.set_level(logging.WARNING, "unisono")
    yield
    said = [each.getMessage() for each in caplog.get_records("call") if each.name.startswith("unisono")]
    assert not said


def arrays(rows=8):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    return x, x[:, :1].copy()


def batches():
    return tf.data.Dataset.from_tensor_slices(arrays()).batch(2)


def one_output(**compiled):
    inputs = keras.Input((3,))
    model = unisono.Model(inputs, keras.layers.Dense(1, name="only")(inputs))
    model.compile(unisono.optimizers.SGD(0.01), "mse", **compiled)
    return model


def warning_functions():
    """The functions of the library that contain a warning."""
    found = collections.Counter()
    for path in (each for package in PACKAGES for each in sorted((ROOT / package).rglob("*.py"))):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for each in ast.walk(function):
                    called = getattr(each, "func", None)
                    if isinstance(called, ast.Attribute) and called.attr in WARNING_CALLS:
                        found[f"{path.relative_to(ROOT).as_posix()} {function.name}"] += 1
    return set(found)


def test_each_warning_has_a_right_program_next_to_it():
    listed = [place for places in NEIGHBOURS.values() for place in places]
    assert len(listed) == len(set(listed))
    assert set(listed) == warning_functions()


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


@program
def first_call_with_a_folder_of_its_own(tmp_path, _):
    """Nothing is compiled, in a folder that only this user can write."""
    cache = ProgramCache()
    cache.folder, cache.why_off = tmp_path / "root" / "machine", ""
    with cache.reuse("model"):
        pass
    assert (tmp_path / "root").is_dir()


@program
def fit_to_every_limit(tmp_path, monkeypatch):
    """As many batches as steps, the last step profiled, as many compilations as allowed."""
    monkeypatch.setattr(
        tf_data, "_ending", ending := set()
    )  # without those of earlier tests, which may wait for more
    model = one_output(metrics={"only": "mae"})
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(3)
    try:
        found = model.fit(
            tf.data.Dataset.from_tensor_slices(arrays(5)).batch(2).repeat(2),
            epochs=2,
            steps_per_epoch=3,
            verbose=0,
            callbacks=[
                callbacks.TensorBoard(tmp_path / "board", profile_batch=(1, 1)),
                callbacks.Profiler(tmp_path / "profile", steps=(6, 6)),
                callbacks.AnomalyReport(),
                callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras", monitor="loss", keep_best=1),
            ],
        )
        model.fit(*arrays(), batch_size=4, steps_per_epoch=2, shuffle="batch", verbose=0)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
    assert len(found.epoch) == 2 and len(list((tmp_path / "profile").rglob("*.xplane.pb"))) == 1
    for thread in list(ending):  # on a busy machine they take longer than a program waits for them
        thread.join(200)
    tf_data._wait_for_ends()


@program
def resumed_fit(tmp_path, monkeypatch):
    """A seeded pipeline and a seeded model, interrupted in the second epoch."""

    def trained(*extra):
        keras.utils.set_random_seed(4)
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        backup = callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1)
        model.fit(batches().shuffle(4), epochs=2, verbose=0, callbacks=[backup, *extra])

    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv", append=True)
    with pytest.raises(Stop):
        trained(logger, StopAt(6))
    logger.csv_file.close()
    trained(keras.callbacks.CSVLogger(tmp_path / "log.csv", append=True))
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3


@program
def inputs_at_the_position_they_are_at(tmp_path, monkeypatch):
    """Before the first batch: nothing is drawn, and nothing is dropped."""
    stream = [tuple(each) for each in batches().as_numpy_iterator()]
    for make in (lambda: stream, lambda: iter(stream), lambda: batches().cache()):
        state = source_of(make()).state()
        source = source_of(make())
        source.restore(state)
        source.close()


@program
def one_input_made_by_two_workers(tmp_path, monkeypatch):
    sent, rows = [], []
    fakes = {
        "spans_workers": lambda strategy: True,
        "gather_json": lambda mine, strategy: sent.append(mine) or sent,
        "gather_numbers": lambda mine, strategy: rows.append(list(mine)) or rows,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(same_input, name, fake)
    for _ in range(2):
        scaled = batches().map(lambda x, y: (2 * x, y), num_parallel_calls=2).prefetch(1)
        same_input.check_same_input(scaled, tf.distribute.get_strategy())
    noisy = batches().map(lambda x, y: (x + tf.random.normal([1], seed=1), y))
    sent.clear()
    first, second = (DatasetSource(Elements(noisy, compared=True), None) for _ in range(2))
    for source in (first, second):
        source.take(1)
        same_input.check_same_data(source, tf.distribute.get_strategy())
        source.close()
    assert len(rows) == 2 and rows[0][1] > 0 and not sent


class RowByRow(keras.layers.Layer):
    """A custom layer that computes each sample separately, and whose state is a statistic of the entire batch."""

    def build(self, shape):
        self.seen = self.add_weight(name="seen", initializer="zeros", trainable=False)

    def call(self, x):
        self.seen.assign(keras.ops.std(x))
        return x / (1 + keras.ops.sum(x**2, axis=-1, keepdims=True))


class Contrasting(unisono.Sequential):
    """Compares the samples of all replicas."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            everyone = unisono.distribute.gather(outputs)
            loss = keras.ops.mean((outputs - y) ** 2) + keras.ops.mean(
                everyone @ keras.ops.transpose(everyone)
            )
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.mean.update_state(keras.ops.mean(outputs, axis=-1))
        return {"mean": keras.ops.mean(y), "sum": keras.ops.sum(y), "zero": keras.ops.mean(x[:, 0])}

    def test_step(self, data):
        return {"error": keras.ops.mean((self(data[0]) - data[1]) ** 2)}


@program
def custom_step_on_two_replicas(tmp_path, monkeypatch):
    x, y = arrays()
    with mirrored(2).scope():
        normal = keras.layers.BatchNormalization(synchronized=True)
        model = Contrasting([RowByRow(), keras.layers.Dense(3), normal])
        model.mean = keras.metrics.Mean("tracked")
        model.compile("sgd")
    model.fit(x, y, batch_size=4, shuffle=False, epochs=2, verbose=0)
    model.evaluate(x, y, batch_size=4, verbose=0)


@program
def one_process_with_devices_of_one_kind(tmp_path, monkeypatch):
    """Also in a batch script, which has the variables of a multi-task job but starts one process."""
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "0")
    check_launched_alone([], tf.distribute.get_strategy())
    gpus = [tf.config.PhysicalDevice(f"gpu:{i}", "GPU") for i in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda gpu: {"device_name": "of one model"}
    )
    automatic._warn_of_mixed_models()
    monkeypatch.setattr(hardware, "gpu_capabilities", lambda: [])
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    as_in_new_process(monkeypatch)
    before = keras.config.dtype_policy()
    try:
        unisono.mixed_precision.set_global_policy("mixed_bfloat16")
    finally:
        keras.config.set_dtype_policy(before)


@program
def layout_map_whose_patterns_name_variables(tmp_path, monkeypatch):
    """A pattern may match one variable of several, and need not divide it."""
    layouts = keras.distribution.LayoutMap(
        keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"])
    )
    layouts[".*wide/kernel"] = (None, "model")
    layouts[".*only/bias"] = (None,)
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    with unisono.distribute.strategy_of(distribution).scope():
        layers = [keras.Input((3,)), keras.layers.Dense(4, name="wide"), keras.layers.Dense(1, name="only")]
        model = unisono.Sequential(layers)
        model.compile(unisono.optimizers.SGD(0.01), "mse")
    model.fit(*arrays(), batch_size=4, epochs=1, verbose=0)


@program
def pipeline_of_layers_that_compute_each_sample_alone(tmp_path, monkeypatch):
    """Softmax and layer normalization combine the numbers of one sample."""
    with unisono.distribute.Pipeline(["cpu:0", "cpu:1"], micro_batches=2).scope():
        layers = [keras.Input((3,)), keras.layers.Dense(4, "softmax"), keras.layers.LayerNormalization()]
        model = unisono.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(unisono.optimizers.SGD(0.01), "mse")
    model.fit(*arrays(), batch_size=4, epochs=1, verbose=0)


@program
def gradients_for_all_that_is_trained(tmp_path, monkeypatch):
    """A frozen layer has no gradients; zero gradients count."""
    model = one_output()
    frozen = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(3, trainable=False), model])
    frozen.compile(unisono.optimizers.SGD(0.01), "mse")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(frozen(np.zeros((2, 3), "float32")))
    frozen.optimizer.minimize(loss, frozen.trainable_variables, tape=tape)


@pytest.mark.filterwarnings("error::DeprecationWarning")
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_with_logs_of_a_custom_step_uses_nothing_deprecated(run_eagerly):
    class WithLogs(GradientsOfItsOwn, unisono.Sequential):
        pass

    model = WithLogs([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=run_eagerly)
    history = model.fit(*arrays(), batch_size=4, verbose=0).history
    assert history and np.isfinite([*history.values()]).all()


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.short(
    "first call with a folder of its own",
    "inputs at the position they are at",
    "one input made by two workers",
    "one process with devices of one kind",
    "gradients for all that is trained",
)
def test_right_program_warns_of_nothing(name, tmp_path, monkeypatch):
    PROGRAMS[name](tmp_path, monkeypatch)
