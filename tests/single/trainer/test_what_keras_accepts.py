"""Programs that plain Keras accepts train to the same numbers here, or one sentence says why they cannot."""

from __future__ import annotations

import contextlib

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from meshes import strategy_for

import unisono
from unisono.distribute import sharded

X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = X[:, :1]
DIVIDED = {
    "weights": lambda: sharded(helpers.mirrored(2), "weights"),
    "mesh": lambda: strategy_for((2, 2), {".*kernel": (None, "model")}),
    "both": lambda: sharded(strategy_for((2, 2), {".*kernel": (None, "model")}), "weights"),
}


class TimesSamples(keras.layers.Layer):
    """Needs to know the number of samples."""

    def call(self, x):
        return x * float(x.shape[0] * 2)


class Subclass(unisono.Model):
    def __init__(self):
        super().__init__()
        self.times, self.dense = TimesSamples(), keras.layers.Dense(1)

    def call(self, x):
        return self.dense(self.times(x))


def functional(kind=unisono.Model):
    inputs = keras.Input(batch_shape=(6, 4))
    return kind(inputs, keras.layers.Dense(1)(TimesSamples()(inputs)))


def sequential(kind=unisono.Sequential):
    return kind([TimesSamples(), keras.layers.Dense(1)])


def compiled(make, strategy=None):
    with helpers.scope(strategy):
        keras.utils.set_random_seed(0)
        model = make()
        model.compile("sgd", "mse", jit_compile=False)
    return model


def losses_of(model, samples=12):
    return model.fit(X[:samples], Y[:samples], batch_size=6, shuffle=False, verbose=0).history["loss"]


@pytest.mark.falls_back
@pytest.mark.parametrize("make", [functional, Subclass, sequential])
@pytest.mark.filterwarnings("ignore:The `train_step`")
@pytest.mark.long
def test_code_that_needs_the_number_of_samples_trains_where_all_batches_have_it(make):
    expected = losses_of(compiled(lambda: functional(keras.Model)))
    for strategy in (None, helpers.mirrored(2), helpers.mirrored(4)):
        np.testing.assert_allclose(losses_of(compiled(make, strategy)), expected, rtol=1e-5)


@pytest.mark.falls_back
@pytest.mark.filterwarnings("ignore:The `train_step`")
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("make", [functional, sequential])
def test_code_that_needs_the_number_of_samples_is_named_where_batches_have_several(make, replicas):
    model = compiled(make, helpers.mirrored(replicas) if replicas > 1 else None)
    with pytest.raises(ValueError, match=r"needs the number of samples.*Use `tf.shape\(x\)\[0\]`"):
        losses_of(model, samples=11)


class Means(unisono.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        outputs = self.dense(x)
        return {"each": outputs, "mean": tf.reduce_mean(outputs), "largest": tf.reduce_max(outputs)}


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.short("True")
def test_scalar_outputs_are_one_number_a_batch_on_every_number_of_replicas(eagerly):
    found = []
    for replicas in (1, 2, 3):
        model = compiled(Means, helpers.mirrored(replicas) if replicas > 1 else None)
        model.run_eagerly = eagerly
        found.append((model.predict(X[:10], batch_size=7, verbose=0), model.predict_on_batch(X)))
    (several, one), *others = found
    assert several["mean"].shape == (2,) and one["mean"].shape == ()
    np.testing.assert_allclose(
        several["mean"], [several["each"][:7].mean(), several["each"][7:].mean()], rtol=1e-5
    )
    for other in others:
        helpers.assert_close(other, (several, one), helpers.FLOAT32)


def loop_outside(strategy, traced, make_optimizer):
    """The weights after a loop that calls no `strategy.run`."""
    with helpers.scope(strategy):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((4,)), keras.layers.Dense(4, "tanh", name="a"), keras.layers.Dense(2, name="b")]
        model, optimizer = unisono.Sequential(layers), make_optimizer()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        )

    run = tf.function(step) if traced else step
    for first in (0, 6, 3):
        run(tf.constant(X[first : first + 6]))
    return model.get_weights()


def adam():
    return unisono.optimizers.Adam(
        0.1, weight_decay=0.1, global_clipnorm=0.5, use_ema=True, ema_overwrite_frequency=2
    )


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("kind", DIVIDED)
@pytest.mark.short("mesh-False")
def test_loop_outside_of_the_scope_updates_divided_weights_as_wholes(kind, traced):
    expected = loop_outside(None, False, adam)
    helpers.assert_close(loop_outside(DIVIDED[kind](), traced, adam), expected, helpers.FLOAT32)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.short("False")
def test_loop_outside_of_the_scope_builds_an_optimizer_of_keras(traced):
    make = lambda: keras.optimizers.SGD(0.1, momentum=0.5)  # noqa: E731
    expected = loop_outside(None, False, make)
    for home in (helpers.mirrored(2), DIVIDED["both"]())[traced:]:
        helpers.assert_close(loop_outside(home, traced, make), expected, helpers.FLOAT32)


@pytest.mark.parametrize("kind", DIVIDED)
@pytest.mark.short("mesh", "weights")
def test_plain_keras_model_is_rejected_where_weights_are_divided(kind):
    strategy = DIVIDED[kind]()
    model = compiled(lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="a")]), strategy)
    for call in (
        lambda: model.fit(X, Y, batch_size=7),
        lambda: model.evaluate(X, Y),
        lambda: model.predict(X),
        lambda: model.train_on_batch(X, Y),
        lambda: model.test_on_batch(X, Y),
        lambda: model.predict_on_batch(X),
    ):
        with pytest.raises(ValueError, match=r"plain keras.Model.*unisono.Model.*unisono.adopt"):
            call()
    unisono.adopt(model).fit(X, Y, batch_size=7, verbose=0)


class SparseProduct(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(4, 2))

    def call(self, x):
        return tf.sparse.sparse_dense_matmul(x, self.kernel) * x.shape[1]  # the size is known, also in Keras

    def compute_output_shape(self, shape):
        return shape[0], 2


@pytest.mark.falls_back
@pytest.mark.filterwarnings("ignore:The `train_step`")
@pytest.mark.long
def test_sparse_inputs_reach_layers_as_sparse_tensors_when_a_model_is_built():
    def make(kind):
        inputs = keras.Input((4,), sparse=True)
        return kind(inputs, keras.layers.Dense(1)(SparseProduct()(inputs)))

    rows = tf.sparse.from_dense(np.maximum(X, 0))
    data = tf.data.Dataset.from_tensor_slices((rows, Y)).batch(6)
    expected = compiled(lambda: make(keras.Model)).fit(data, shuffle=False, verbose=0).history["loss"]
    for strategy in (None, helpers.mirrored(2)):
        model = compiled(lambda: make(unisono.Model), strategy)
        for given in ({"x": data}, {"x": rows, "y": Y, "batch_size": 6}):
            with helpers.scope(strategy):
                model.set_weights(compiled(lambda: make(keras.Model)).get_weights())
            found = model.fit(**given, shuffle=False, verbose=0).history["loss"]
            np.testing.assert_allclose(found, expected, rtol=1e-5)


class Places(keras.layers.Layer):
    def __init__(self, method):
        super().__init__()
        self.method = method

    def build(self, shape):
        self.seen = self.add_weight(shape=(3,), initializer="zeros", trainable=False)

    def call(self, x):
        getattr(self.seen.value, self.method)([[1], [2]], [1.0, 2.0])
        return x * (1 + tf.reduce_sum(tf.convert_to_tensor(self.seen)))


@pytest.mark.parametrize("method", ["scatter_nd_add", "scatter_nd_sub", "scatter_nd_update"])
@pytest.mark.short("scatter_nd_sub")
def test_layer_that_writes_places_can_be_called_on_specs_under_a_strategy(method):
    def make():
        inputs = keras.Input((4,))
        return unisono.Model(inputs, keras.layers.Dense(1)(Places(method)(inputs)))

    found = []
    for strategy in (None, helpers.mirrored(2)):
        model = compiled(make, strategy)
        found.append((losses_of(model), model.get_weights()))
    helpers.assert_close(found[1], found[0], helpers.FLOAT32)


class WritesSummary(keras.layers.Layer):
    def call(self, x):
        tf.summary.scalar("mean", tf.reduce_mean(x), step=0)
        return x


@pytest.mark.falls_back
@pytest.mark.as_for_users
@pytest.mark.long
def test_warning_about_a_summary_names_the_line_of_the_user(tmp_path):
    def make():
        return unisono.Sequential([keras.Input((4,)), WritesSummary(), keras.layers.Dense(1)])

    model, writer = compiled(make, helpers.mirrored(2)), tf.summary.create_file_writer(str(tmp_path))
    with (
        writer.as_default(),
        pytest.warns(UserWarning, match=r"WriteSummary in test_what_keras_accepts.py:\d+"),
    ):
        losses_of(model)
    writer.close()


def test_loss_that_becomes_nan_is_one_warning_with_the_steps():
    model, bad = compiled(lambda: unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])), X.copy()
    bad[7] = np.nan
    with pytest.warns(UserWarning, match=r"loss became NaN in .*epoch 1.*diagnose.*debug-nan") as found:
        assert np.isnan(
            model.fit(bad, Y, batch_size=3, epochs=3, shuffle=False, verbose=0).history["loss"]
        ).all()
    assert len(found) == 1


def test_mistakes_in_arguments_are_named_with_what_is_needed():
    with pytest.raises(TypeError, match=r"a dict for each output.*sample_weight for each output"):
        compiled(lambda: unisono.Sequential([keras.layers.Dense(1)])).fit(X, Y, class_weight={"a": {0: 1.0}})
    model = compiled(lambda: unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    for call, meant in (
        (lambda: model.fit(X, Y, bach_size=3), "batch_size"),
        (lambda: model.fit(X, Y, epoch=3), "epochs"),
        (lambda: model.evaluate(X, Y, step=3), "steps"),
        (lambda: model.predict(X, callback=[]), "callbacks"),
        (lambda: model.compile(optimiser="sgd"), "optimizer"),
        (lambda: model.train_on_batch(X, Y, sample_weigths=Y), "sample_weight"),
        (lambda: model.test_on_batch(X, Y, return_dicts=True), "return_dict"),
    ):
        with pytest.raises(TypeError, match=rf"did you mean `{meant}`\?"):
            call()
    with pytest.raises(
        TypeError, match=r"^`sample_weight` is a float: pass arrays or tensors with samples\.$"
    ):
        model.evaluate(X, Y, sample_weight=1.0)
    with pytest.raises(ValueError, match=r"`x` is complex.*takes float32.*complex64"):
        model.fit(X.astype("complex64"), Y)
    with pytest.raises(ValueError, match=r"pass the folder.*BackupAndRestore\(\"backup\"\)"):
        unisono.callbacks.BackupAndRestore()
    with contextlib.ExitStack() as scope:
        scope.enter_context(strategy_for((1, 2), {"*kernel": (None, "model")}).scope())
        with pytest.raises(ValueError, match=r"'\*kernel'.*not a regular expression"):
            unisono.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def of_widths(*widths):
    """Batches of six samples, whose spec leaves the number of features open."""
    spec = tf.TensorSpec((None, None), tf.float32), tf.TensorSpec((None, 1), tf.float32)
    batches = [(np.resize(X, (6, width)), Y[:6]) for width in widths]
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)


class Product(unisono.Model):
    """Multiplies its input with a matrix that no layer of Keras has."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(4, 1))

    def call(self, x):
        return x @ self.kernel


@pytest.mark.parametrize("make", ["functional", "subclassed"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.short("1-subclassed")
def test_dataset_that_changes_its_width_names_the_batch_and_the_shapes(make, replicas):
    def layers():
        return unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    model = compiled(layers if make == "functional" else Product, helpers.mirrored(replicas))
    model.build((None, 4))
    for call in (
        lambda: model.fit(of_widths(4, 4, 5), verbose=0),
        lambda: model.evaluate(of_widths(4, 4, 5)),
    ):
        with pytest.raises(ValueError, match=r"Batch 2 of the epoch.*`x` of shape \(None, 5\).*\b4\b"):
            call()


@pytest.mark.as_for_users  # Grappler takes the width from the kernel
def test_second_batch_of_a_generator_that_does_not_fit_is_named():
    model = compiled(lambda: unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match=r"Batch 1 of the epoch.*`x` of shape \(None, 3\).*\b4\b"):
        model.fit(iter([(X, Y), (X[:, :3], Y)]), verbose=0)


def test_dataset_of_unknown_rank_and_complex_targets_and_weights_are_named():
    model = compiled(lambda: unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    spec = tf.TensorSpec(None), tf.TensorSpec((None, 1))
    data = tf.data.Dataset.from_generator(lambda: iter([(X, Y)]), output_signature=spec)
    with pytest.raises(ValueError, match=r"^`x` has an unknown number of dimensions.*`output_signature`"):
        model.fit(data)
    with pytest.raises(ValueError, match=r"^`y` is complex.*pass real numbers"):
        model.fit(X, Y + 1j, verbose=0)
    with pytest.raises(ValueError, match=r"^`sample_weight` is complex.*pass real numbers"):
        model.evaluate(X, Y, sample_weight=np.ones(12) * 1j)
    with pytest.raises(ValueError, match=r"^`y` does not fit") as error:
        model.fit(X, np.ones((12, 2, 2)), verbose=0)
    assert "node" not in str(error.value)


def test_one_input_of_a_sequential_is_the_first_of_several_arrays_as_in_keras():
    found = []
    for module in (keras, unisono):
        model = compiled(lambda module=module: module.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
        with pytest.warns(UserWarning, match="structure of `inputs` doesn't match"):
            found.append(model.predict([X, None], verbose=0))
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("kind", DIVIDED)
@pytest.mark.short("weights")
def test_batches_of_any_width_train_divided_weights(kind):
    def make():
        return unisono.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="a"), keras.layers.Dense(2)])

    found = []
    for strategy in (None, DIVIDED[kind]()):
        model = compiled(make, strategy)
        found.append((model.fit(of_widths(4, 4), verbose=0).history["loss"], model.get_weights()))
    helpers.assert_close(found[1], found[0], helpers.FLOAT32)


class Adds(unisono.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x["a"] + x["b"])


def adds():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    return unisono.Model({"a": a, "b": b}, keras.layers.Dense(1)(a + b))


@pytest.mark.parametrize("make", [adds, Adds])
@pytest.mark.filterwarnings("ignore:.*unbuilt state")
def test_none_within_inputs_is_one_sentence(make):
    for replicas in (1, 2):
        for name in ("predict", "predict_on_batch", "fit"):
            model = compiled(make, helpers.mirrored(replicas))
            given = ({"a": X, "b": None},) if name != "fit" else ({"a": X, "b": None}, Y)
            with pytest.raises(ValueError, match=r"has None.*[Pp]ass an array"):
                getattr(model, name)(*given)


class HoldsVariable(keras.layers.Layer):
    """Makes a variable of TensorFlow where it is built, or first called."""

    def __init__(self, in_call):
        super().__init__()
        self.in_call, self.kernel = in_call, None

    def make(self, shape):
        self.kernel = tf.Variable(tf.eye(shape[-1]) * 0.5, name="kernel")

    def build(self, shape):
        if not self.in_call:
            self.make(shape)

    def call(self, x):
        if self.kernel is None:
            self.make(x.shape)
        return x @ self.kernel


def holds_variable(in_call, kind):
    class Model(kind):
        def __init__(self):
            super().__init__()
            self.holds, self.dense = HoldsVariable(in_call), keras.layers.Dense(2, name="a")

        def call(self, x):
            return self.dense(self.holds(x))

    return Model


@pytest.mark.parametrize("in_call", [False, True])
@pytest.mark.short("True")
def test_variable_of_tensorflow_that_a_layer_makes_late_trains_like_keras(in_call):
    expected = losses_of(compiled(holds_variable(in_call, keras.Model)))
    kinds = (lambda: None, lambda: helpers.mirrored(2), lambda: helpers.mirrored(3), *DIVIDED.values())
    for make_strategy in kinds:
        found = losses_of(compiled(holds_variable(in_call, unisono.Model), make_strategy()))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
