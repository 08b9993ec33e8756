"""Optimizers and metrics keep their variables across fits, whether created inside or outside the strategy's scope."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
BATCH = 5  # uneven on two replicas, without a partial last batch, which would need its own graph


@pytest.mark.parametrize("name", ["mirrored2", "central2"])
@pytest.mark.long
def test_second_fit_goes_on_with_the_variables_of_the_first(name):
    histories = []
    for kind in ("none", name):
        keras.utils.set_random_seed(2)
        metric = keras.metrics.MeanAbsoluteError()  # created outside the scope, as the optimizer is
        optimizer = unisono.optimizers.Adam(0.1)
        with helpers.scope(helpers.strategy(kind)):
            model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(optimizer, "mse", metrics=[metric])
        history = model.fit(X, X[:, :1], batch_size=4, shuffle=False, verbose=0).history
        before = [id(variable.value) for variable in [*optimizer.variables, *metric.variables]]
        again = model.fit(X, X[:, :1], batch_size=4, shuffle=False, verbose=0).history
        assert [id(variable.value) for variable in [*optimizer.variables, *metric.variables]] == before
        assert int(optimizer.iterations.numpy()) == 6
        histories.append([history, again, model.get_weights()])
    helpers.assert_close(histories[1], histories[0], helpers.FLOAT32)


def trained(make, name):
    """History, weights and predictions of the model from `make(scope)`; checks that a variable's copies are equal."""
    keras.utils.set_random_seed(2)
    strategy = helpers.strategy(name)
    model = make(lambda: helpers.scope(strategy))
    history = model.fit(X, X[:, :1], batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    if strategy:
        assert helpers.copies_are_equal(model.variables, strategy)
        for variable in model.variables:
            copies = strategy.experimental_local_results(variable.value)
            assert len(copies) == strategy.num_replicas_in_sync, variable.path
    others = [part.predict(X, verbose=0) for part in getattr(model, "used_before", [])]
    return history, model.get_weights(), model.predict(X, verbose=0), others


def layers_made_before(scope):
    normalization = keras.layers.Normalization()
    normalization.adapt(X)
    backbone = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.BatchNormalization()]
    )
    backbone.layers[1].trainable = False
    preprocessing = keras.Sequential([keras.Input((3,)), normalization])
    with scope():
        inputs = keras.Input((3,))
        outputs = keras.layers.Dense(1)(backbone(preprocessing(inputs), training=False))
        model = unisono.Model(inputs, outputs)
        model.compile(unisono.optimizers.Adam(0.1), "mse")
    return model


def model_made_before(scope):
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(unisono.optimizers.Adam(0.1), "mse")
    model.fit(X, X[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
    with scope():
        model.compile(model.optimizer, "mse")
    return model


def adopted_before(scope):
    model = unisono.adopt(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    with scope():
        model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
    return model


def low_rank_after_training(scope, quantized=False):
    with scope():
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        model.compile(unisono.optimizers.Adam(0.1), "mse", run_eagerly=True)
    model.fit(X, X[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
    if quantized:
        model.quantize("int8")
    model.layers[0].enable_lora(2)
    model.compile(unisono.optimizers.Adam(0.1), "mse", run_eagerly=True)
    return model


def trained_by_keras_and_adopted(scope):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"], run_eagerly=True)
    model.fit(X, X[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
    with scope():
        return unisono.adopt(model)


def made_before_and_trained_in_scope(scope):
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(unisono.optimizers.Adam(0.1), "mse")
    model.fit(X, X[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
    with scope():
        model.fit(X, X[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
    return model


def models_used_before(scope):
    ours = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(3, "tanh")])
    ours.compile(unisono.optimizers.Adam(0.1), "mse")
    ours.fit(X, X, batch_size=BATCH, shuffle=False, verbose=0)
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "relu")])
    plain.predict(X, verbose=0)
    with scope():
        inputs = keras.Input((3,))
        model = unisono.Model(inputs, keras.layers.Dense(1)(plain(ours(inputs))))
        model.compile(unisono.optimizers.Adam(0.1), "mse")
    model.used_before = [ours, plain]
    return model


def head_outside_of_the_scope(scope):
    with scope():
        base = unisono.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(3, "relu")]
        )
    base.pop()
    base.add(keras.layers.Dense(3))
    base.layers[0].trainable = False
    model = unisono.Sequential([base, keras.layers.Dense(1)])
    model.compile(unisono.optimizers.SGD(0.1), "mse", run_eagerly=True)
    model.fit(X, X[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
    base.layers[0].trainable = True
    model.compile(unisono.optimizers.SGD(0.01), "mse", run_eagerly=True)
    return model


def quantized_after_training(scope):
    return low_rank_after_training(scope, quantized=True)


def optimizer_made_before_half_precision(scope):
    with unisono.mixed_precision.policy_scope("mixed_float16"):
        optimizer = unisono.optimizers.SGD(0.1, momentum=0.5)
        with scope():
            model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(optimizer, "mse", run_eagerly=True)
    return model


MADE_ELSEWHERE = [
    layers_made_before,
    model_made_before,
    adopted_before,
    low_rank_after_training,
    trained_by_keras_and_adopted,
    made_before_and_trained_in_scope,
    models_used_before,
    head_outside_of_the_scope,
    quantized_after_training,
]


@pytest.mark.short("trained_by_keras_and_adopted-one")
@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
@pytest.mark.parametrize(
    ("make", "name"),
    [*((make, "mirrored2") for make in MADE_ELSEWHERE), (trained_by_keras_and_adopted, "one")],
)
def test_what_was_made_outside_of_the_scope_is_moved_into_the_scope(make, name):
    helpers.assert_close(trained(make, name), trained(make, "none"), helpers.FLOAT32)


@pytest.mark.long
def test_optimizer_made_outside_of_the_scope_is_scaled_and_moved_into_the_scope():
    make = optimizer_made_before_half_precision
    helpers.assert_close(trained(make, "mirrored2"), trained(make, "none"), 5e-3)  # float16: 11 bits


class Around(keras.optimizers.Optimizer):
    """Holds another optimizer, and builds it."""

    def __init__(self):
        super().__init__(0.0)
        self.base = keras.optimizers.SGD(0.1, momentum=0.5)

    def build(self, variables):
        super().build(variables)
        self.base.build(variables)

    def apply(self, grads, trainable_variables=None):
        self.base.apply(grads, trainable_variables)
        self._iterations.assign_add(1)


def chosen():
    kernels, biases = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.5)
    return keras.optimizers.MultiOptimizer(lambda v: kernels if v.path.endswith("kernel") else biases)


MADE_BEFORE = {
    "keras": lambda: keras.optimizers.Adam(0.1),
    "ours": lambda: unisono.optimizers.Adam(0.1),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
    "average": lambda: keras.optimizers.SGD(0.1, use_ema=True, gradient_accumulation_steps=2),
    "chosen": chosen,
    "around": Around,
}


def trained_by(optimizer, name, built):
    keras.utils.set_random_seed(2)
    model = None
    if built == "before":
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer.build(model.trainable_variables)
    with helpers.scope(helpers.strategy(name)):
        model = model or unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        if built == "compiled":
            model.compile(optimizer, "mse")
        if built in ("compiled", "inside"):
            optimizer.build(model.trainable_variables)
        model.compile(optimizer, "mse")
        for epochs in (2, 1):
            model.fit(X, X[:, :1], batch_size=4, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights(), [v.numpy() for v in optimizer.variables]


@pytest.mark.short("inside-around")
@pytest.mark.parametrize("make", MADE_BEFORE.values(), ids=MADE_BEFORE.keys())
@pytest.mark.parametrize("built", ["inside", "compiled", "before", "never"])
def test_optimizer_made_outside_of_the_scope_is_moved_wherever_it_is_built(make, built):
    one, two = (trained_by(make(), name, built) for name in ("none", "mirrored2"))
    helpers.assert_close(two, one, helpers.FLOAT32)


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    keras.utils.set_random_seed(3)
    source = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.BatchNormalization()]
    )
    path = str(tmp_path_factory.mktemp("saved"))
    source.export(path, verbose=False)
    return path


class Compiled(keras.layers.Layer):
    """Has a function that is compiled before the layer is moved."""

    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(shape=(3, 4), initializer="ones")
        spec = tf.TensorSpec([None, 3])
        self.product = tf.function(lambda x: x @ self.kernel).get_concrete_function(spec)

    def call(self, x):
        return self.product(x)


def fine_tuned(make, strategy, inside=False):
    keras.utils.set_random_seed(2)
    layer = None if inside else make()
    with helpers.scope(strategy):
        layer = layer or make()
        model = unisono.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    history = model.fit(X, X[:, :1], batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return history["loss"], model.get_weights(), model.predict(X, verbose=0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mirrored1", "mirrored2", "mirrored3", "central2"])
@pytest.mark.parametrize("kind", ["loaded", "compiled"])
def test_functions_compiled_outside_of_the_scope_read_the_variables_that_are_trained(kind, name, saved_model):
    make = Compiled if kind == "compiled" else lambda: keras.layers.TFSMLayer(saved_model, "serve")
    one, several = (fine_tuned(make, helpers.strategy(each)) for each in ("none", name))
    helpers.assert_close(several, one, helpers.FLOAT32)


@pytest.mark.parametrize("place", ["one", "weights", "pipeline"])
@pytest.mark.short("one")
def test_functions_that_do_not_read_the_trained_variables_name_their_layer(place, saved_model):
    strategies = {
        "one": lambda: helpers.strategy("one"),
        "weights": lambda: unisono.distribute.sharded(helpers.mirrored(2), "weights"),
        "pipeline": lambda: unisono.distribute.Pipeline(["CPU:0", "CPU:1"], micro_batches=2),
    }
    loaded, strategy = keras.layers.TFSMLayer(saved_model, "serve"), strategies[place]()
    for layer in (Compiled(), loaded, loaded):
        with pytest.raises(ValueError, match=f"layer {layer.name!r}.* `trainable=False`"):
            fine_tuned(lambda layer=layer: layer, strategy)
    frozen = keras.layers.TFSMLayer(saved_model, "serve", trainable=False)
    fine_tuned(lambda: frozen, strategy)
