"""Fits whose input draws from generators of layers, callbacks and the program, stopped and resumed in this process."""

import functools
import sys
import time
import types

import keras
import numpy as np
import pytest
import resumed_inputs
import tensorflow as tf
from helpers import resumed

import unisono
from unisono import callbacks
from unisono.callbacks.backup import exactness


def slowly_from_numpy():
    """Draws slowly from NumPy's global generator for each sample, ahead of the steps."""

    def draw(row):
        time.sleep(0.001)
        return row + np.random.normal()

    return resumed_inputs.ready(resumed_inputs.called(draw))


def trained(make, *extra, validation=None, steps=None):
    resumed_inputs.fresh()
    x = make()
    model = resumed_inputs.drawing_model()
    data = {} if validation is None else {"validation_data": validation(), "validation_steps": steps}
    history = model.fit(x, epochs=3, verbose=0, callbacks=[resumed_inputs.Drawing(), *extra], **data)
    return [weight.tobytes() for weight in model.get_weights()], history.history


@pytest.mark.short("pydataset_shuffles_itself-pydataset_own_shuffle-3")
@pytest.mark.parametrize(
    ("make", "validation", "steps"),
    [
        (slowly_from_numpy, None, None),
        (resumed_inputs.global_generator, resumed_inputs.shuffled, 3),
        (resumed_inputs.pydataset_shuffles_itself, resumed_inputs.pydataset_own_shuffle, 3),
        (resumed_inputs.iterable_global_shuffle, resumed_inputs.numpy_in_py_function, None),
    ],
)
def test_resumed_fit_ends_with_the_same_bits(make, validation, steps, tmp_path, recwarn):
    train = functools.partial(trained, make, validation=validation, steps=steps)
    expected = train()
    assert resumed(train, tmp_path, 14) == expected
    assert not [warning for warning in recwarn if "cannot be exact" in str(warning.message)]


class OfVariants(unisono.Model):
    """Its inputs are ragged and sparse tensors in a nested structure."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 3))
        self.built = True

    def call(self, x):
        both = x["ragged"].to_tensor(shape=[None, 3]) + tf.sparse.to_dense(x["pair"][0])
        return self.dense(tf.ensure_shape(both, [None, 3]))


def test_ragged_and_sparse_elements_resume_with_the_same_bits(tmp_path):
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(12.0), [1, 3, 0, 2, 3, 3])
    sparse = tf.sparse.from_dense(np.eye(6, 3, dtype="float32"))
    elements = {"ragged": ragged, "pair": (sparse, ragged)}, np.ones((6, 1), "float32")

    def trained(*extra):
        resumed_inputs.fresh()
        x = tf.data.Dataset.from_tensor_slices(elements).shuffle(6, seed=1).batch(2).prefetch(1)
        model = OfVariants()
        model.compile("adam", "mse", jit_compile=False)
        model.fit(x, epochs=2, verbose=0, callbacks=list(extra))
        return [weight.tobytes() for weight in model.get_weights()]

    expected = trained()
    assert resumed(trained, tmp_path, 4) == expected


def test_generator_that_input_and_callback_draw_from_is_named(tmp_path):
    shared = np.random.default_rng(1)
    x = resumed_inputs.ready(resumed_inputs.called(lambda row: row + shared.normal()))
    model = resumed_inputs.drawing_model()
    validation = resumed_inputs.ready(
        resumed_inputs.slices().shuffle(9).map(tf.identity, num_parallel_calls=2)
    )
    options = tf.data.Options()
    options.deterministic = False
    in_any_order = {"validation_data": validation.with_options(options)}
    ends_early = {"validation_data": resumed_inputs.numpy_in_py_function(), "validation_steps": 3}
    for data, others, given, message in (
        (
            x,
            [Sharing(shared)],
            {},
            r"x and something else draw from the same random numbers .* cannot be exact",
        ),
        (
            resumed_inputs.shuffled(),
            [],
            in_any_order,
            "validation_data is a tf.data pipeline with deterministic=False",
        ),
        (
            resumed_inputs.shuffled(),
            [],
            ends_early,
            r"validation_steps \(3\) ends each pass while it is read ahead",
        ),
    ):
        with pytest.warns(UserWarning, match=message):
            backup = callbacks.BackupAndRestore(tmp_path)
            model.fit(data, **given, verbose=0, callbacks=[*others, backup])


class Sharing(keras.callbacks.Callback):
    def __init__(self, rng):
        super().__init__()
        self.rng = rng

    def on_train_batch_end(self, batch, logs=None):
        self.rng.normal()


class Hidden(keras.layers.Layer):
    """Draws, in each step, from a generator that only another module holds."""

    def call(self, x):
        draw = lambda: np.float32(sys.modules["hidden"].rng.normal())  # noqa: E731
        return x + tf.ensure_shape(tf.numpy_function(draw, [], tf.float32), [])


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.short("False")
def test_generator_that_another_module_hides_is_restored_if_it_is_named_and_else_warned_of(
    named, tmp_path, monkeypatch, recwarn
):
    def trained(*extra):
        resumed_inputs.fresh()
        hidden = types.ModuleType("hidden")
        hidden.rng = np.random.default_rng(7)
        monkeypatch.setitem(sys.modules, "hidden", hidden)
        model = unisono.Sequential([keras.Input((3,)), Hidden(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        for each in extra:
            each.generators = [hidden.rng] if named else []
        x = resumed_inputs.rows()
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=list(extra))
        return [weight.tobytes() for weight in model.get_weights()]

    expected = trained()
    assert (resumed(trained, tmp_path, 4) == expected) == named
    said = [str(each.message) for each in recwarn if "cannot be exact" in str(each.message)]
    assert bool(said) != named and all("Generator (hidden.rng) that is in no backup" in each for each in said)


def test_hidden_generator_that_the_first_step_makes_is_warned_of_at_the_second_save(tmp_path, monkeypatch):
    hidden = types.ModuleType("hidden")
    monkeypatch.setitem(sys.modules, "hidden", hidden)

    class Makes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            vars(hidden).setdefault("rng", np.random.default_rng(7)).normal()

    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    x = np.ones((8, 3), "float32")
    with pytest.warns(UserWarning, match=r"Generator \(hidden.rng\) that is in no backup"):
        model.fit(
            x,
            x[:, :1],
            batch_size=4,
            epochs=2,
            verbose=0,
            callbacks=[Makes(), callbacks.BackupAndRestore(tmp_path, save_freq=1)],
        )


def test_operation_whose_state_cannot_be_saved_is_named(tmp_path):
    drawing = keras.layers.Lambda(lambda x: x + tf.random.uniform([]))
    model = unisono.Sequential([keras.Input((3,)), drawing, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    x = np.ones((8, 3), "float32")
    with pytest.warns(UserWarning, match=r"resumed run cannot be exact.*random_uniform/RandomUniform\)"):
        model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[callbacks.BackupAndRestore(tmp_path)])


@pytest.mark.parametrize("deterministic", [False, True])
def test_backup_on_a_gpu_warns_unless_operations_are_deterministic(
    tmp_path, monkeypatch, recwarn, deterministic
):
    fakes = {"is_gpu": lambda device: "CPU" in device, "operations_are_deterministic": lambda: deterministic}
    for name, fake in fakes.items():
        monkeypatch.setattr(exactness, name, fake)
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 2), "float32")
    model.fit(x, x[:, :1], verbose=0, callbacks=[callbacks.BackupAndRestore(tmp_path)])
    warned = ["enable_op_determinism" in str(warning.message) for warning in recwarn]
    assert warned == ([] if deterministic else [True])
