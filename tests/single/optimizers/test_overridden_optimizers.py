"""What a user overrides in an optimizer is called under every wrapper of ours as plain Keras calls it."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

ROWS, STEPS = 5, 3
NAMES = [
    *(
        "apply",
        "apply_gradients",
        "update_step",
        "build",
        "stateless_apply",
        "assign",
        "assign_add",
        "assign_sub",
    ),
    *("add_variable", "add_variable_from_reference", "add_optimizer_variables", "scale_loss"),
    *("finalize_variable_values", "exclude_from_weight_decay"),
]


def recording(name):
    """A class that overrides one method, and notes the calls of it that do not come from itself."""

    class Recorded(keras.optimizers.SGD):
        calls = None

        def __init__(self):
            super().__init__(0.1, momentum=0.5, weight_decay=0.01, use_ema=True, ema_overwrite_frequency=2)
            self.calls = {}

    def method(self, *args, **kwargs):
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(super(Recorded, self), name)(*args, **kwargs)

    setattr(Recorded, name, method)
    return Recorded


class Lookahead(keras.optimizers.SGD):
    """Writes the weights after each second update, by Keras' methods and by the variables' own."""

    def build(self, variables):
        super().build(variables)
        self.slow = [self.add_variable_from_reference(v, "slow") for v in variables]

    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        variables = trainable_variables or self._trainable_variables
        turn = self._iterations % 2 == 0
        for slow, variable in zip(self.slow, variables):
            slow.assign(tf.where(turn, slow + 0.5 * (variable - slow), slow))
            self.assign(variable, tf.where(turn, slow, variable))
            variable.assign(variable * 1.5)


class Surgery(keras.optimizers.Adam):
    """Changes all gradients together, before the update."""

    def apply(self, grads, trainable_variables=None):
        norm = tf.linalg.global_norm([g for g in grads if g is not None])
        super().apply([g if g is None else g / (norm + 1e-3) for g in grads], trainable_variables)


class Around(keras.optimizers.Optimizer):
    """Holds another optimizer, and has no update rule."""

    def __init__(self, learning_rate=0.1):
        super().__init__(0.0)
        self.base = keras.optimizers.SGD(learning_rate, momentum=0.5)

    def apply(self, grads, trainable_variables=None):
        self.base.apply([g if g is None else 0.5 * g for g in grads], trainable_variables)
        self._iterations.assign_add(1)


class Alone(keras.optimizers.Optimizer):
    """Writes the weights itself."""

    def apply(self, grads, trainable_variables=None):
        for gradient, variable in zip(grads, trainable_variables or ()):
            gradient = tf.zeros_like(variable) if gradient is None else gradient
            variable.assign_sub(0.1 * gradient)
            self.assign_sub(variable, 0.05 * gradient)
        self._iterations.assign_add(1)


class OwnRate(keras.optimizers.SGD):
    @property
    def learning_rate(self):
        return 0.1 / (1.0 + tf.cast(self.iterations, "float32"))

    @learning_rate.setter
    def learning_rate(self, value):
        keras.optimizers.SGD.learning_rate.fset(self, value)  # type: ignore[attr-defined]


class OwnCount(keras.optimizers.Adam):
    @property
    def iterations(self):
        return 2 * super().iterations + 1


class OwnState(keras.optimizers.SGD):
    """Writes its state by the variable's own methods."""

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        momentum.assign(0.5 * momentum + gradient)
        self.assign_sub(variable, momentum * learning_rate)


class OwnVariables(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        count = self.iterations + 1
        rate = 1.0 / tf.cast(count, "float32")
        super().apply([g if g is None else rate * g for g in grads], trainable_variables)


def with_momentum(cls):
    return (lambda: cls(0.1, momentum=0.5)) if issubclass(cls, keras.optimizers.SGD) else lambda: cls(0.1)


WEIGHTS = {
    each.__name__: with_momentum(each)
    for each in (Lookahead, Surgery, Around, Alone, OwnRate, OwnCount, OwnState, OwnVariables)
}


def plain_wrapper(wrapper, make):
    """The optimizer for `compile`, made of plain Keras' classes, and those inside."""
    if wrapper == "scale":
        inner = make()
        return keras.optimizers.LossScaleOptimizer(inner, 8.0, 2), [inner]
    if wrapper == "multi":
        inside = [make(), make()]
        return keras.optimizers.MultiOptimizer(lambda v: inside[v.path.endswith("bias")]), inside
    if wrapper == "scaled multi":
        multi, inside = plain_wrapper("multi", make)
        return keras.optimizers.LossScaleOptimizer(multi, 8.0, 2), inside
    inner = make()
    return inner, [inner]


def trained(cls, wrapper, make, strategy=None, rows=ROWS):
    """The weights and the state after a fit with `cls.Sequential`, and the calls of the overridden method."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    with helpers.scope(strategy):
        model = cls.Sequential([keras.Input((3,)), keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)])
        optimizer, inside = plain_wrapper(wrapper, make)
        model.compile(optimizer, "mse", jit_compile=False)
    model.fit(x, x[:, :1], batch_size=3, epochs=STEPS - 1, shuffle=False, verbose=0)
    state = [np.array(v) for each in inside for v in each.variables]
    return [*model.get_weights(), *state], [getattr(each, "calls", {}) for each in inside]


WRAPPERS = ["none", "scale", "multi", "scaled multi"]


@pytest.mark.long
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", NAMES)
def test_an_overridden_method_is_called_where_keras_calls_it(name, wrapper):
    (ours, our_calls), (plain, plain_calls) = (
        trained(module, wrapper, recording(name)) for module in (unisono, keras)
    )
    helpers.assert_close(ours, plain, helpers.FLOAT32)
    assert [*map(set, our_calls)] == [*map(set, plain_calls)]


@pytest.mark.short("Alone-none")
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_an_override_changes_the_weights_as_in_keras(name, wrapper):
    (ours, _), (plain, _) = (trained(module, wrapper, WEIGHTS[name]) for module in (unisono, keras))
    helpers.assert_close(ours, plain, helpers.FLOAT32)


@pytest.mark.short("2-Around-multi")
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("replicas", [2, 3])
def test_an_override_on_replicas_is_that_of_one_device(name, wrapper, replicas):
    one, several = (
        trained(unisono, wrapper, WEIGHTS[name], s)[0] for s in (None, helpers.mirrored(replicas))
    )
    helpers.assert_close(several, one, helpers.FLOAT32)


@pytest.mark.short("optimizer-Lookahead-none")
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("kind", ["optimizer", "weights", "central"])
def test_an_override_where_replicas_share_state_is_that_of_one_device(name, wrapper, kind):
    if kind == "central":
        strategy = helpers.strategy("central2")
    else:
        strategy = unisono.distribute.sharded(helpers.mirrored(2), kind)
    one, several = (trained(unisono, wrapper, WEIGHTS[name], s)[0] for s in (None, strategy))
    helpers.assert_close(several, one, helpers.FLOAT32)


def looped(cls, wrapper, make, in_graph):
    """Three updates in a custom loop, of which the second overflows where the loss is scaled."""
    variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0]), keras.Variable([4.0])]
    for index, variable in enumerate(variables):
        variable._path = ["a/kernel", "b/kernel", "b/bias"][index]
    optimizer, inside = plain_wrapper(wrapper, make)
    if cls is unisono:
        optimizer = unisono.optimizers.adopt(optimizer)
    optimizer.build(variables)

    def step(scale):
        gradients = [tf.constant([1.0, -1.0]) * scale, None, tf.constant([2.0]) * scale]
        optimizer.apply(gradients, variables)

    step = tf.function(step) if in_graph else step
    for scale in (1.0, np.inf if "scale" in wrapper else 2.0, 3.0):
        step(tf.constant(scale, tf.float32))
    return [np.array(v) for v in [*variables, *(v for each in inside for v in each.variables)]]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.short(
    "Lookahead-none-eager",
    "Lookahead-scale-eager",
    "Lookahead-scale-graph",
    "Lookahead-multi-eager",
    "Lookahead-multi-graph",
    "Lookahead-scaled multi-eager",
    "Lookahead-scaled multi-graph",
    "Surgery-none-eager",
    "Surgery-none-graph",
    "Surgery-scale-eager",
    "Surgery-scale-graph",
    "Surgery-multi-eager",
    "Surgery-multi-graph",
    "Surgery-scaled multi-eager",
    "Around-none-eager",
    "Around-none-graph",
    "Around-scale-eager",
    "Around-multi-eager",
    "Around-multi-graph",
    "Around-scaled multi-eager",
    "Around-scaled multi-graph",
    "Alone-none-eager",
    "Alone-none-graph",
    "Alone-scale-eager",
    "Alone-scale-graph",
    "Alone-multi-eager",
    "Alone-multi-graph",
    "Alone-scaled multi-eager",
    "Alone-scaled multi-graph",
    "OwnRate-none-eager",
    "OwnRate-none-graph",
    "OwnRate-scale-eager",
    "OwnRate-scale-graph",
    "OwnRate-multi-eager",
    "OwnRate-multi-graph",
    "OwnRate-scaled multi-eager",
    "OwnRate-scaled multi-graph",
    "OwnCount-none-eager",
    "OwnCount-none-graph",
    "OwnCount-scale-eager",
    "OwnCount-scale-graph",
    "OwnCount-multi-eager",
    "OwnCount-multi-graph",
    "OwnCount-scaled multi-eager",
    "OwnCount-scaled multi-graph",
    "OwnState-none-eager",
    "OwnState-none-graph",
    "OwnState-scale-eager",
    "OwnState-scale-graph",
    "OwnState-multi-eager",
    "OwnState-multi-graph",
    "OwnState-scaled multi-eager",
    "OwnState-scaled multi-graph",
    "OwnVariables-none-eager",
    "OwnVariables-none-graph",
    "OwnVariables-scale-eager",
    "OwnVariables-scale-graph",
    "OwnVariables-multi-eager",
    "OwnVariables-multi-graph",
    "OwnVariables-scaled multi-eager",
    "OwnVariables-scaled multi-graph",
)
def test_an_override_in_a_custom_loop_is_that_of_keras(name, wrapper, in_graph):
    ours, plain = (looped(module, wrapper, WEIGHTS[name], in_graph) for module in (unisono, keras))
    helpers.assert_close(ours, plain, helpers.FLOAT32)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.long
def test_an_override_that_accumulates_gradients_is_called_for_each_batch_as_in_keras(wrapper):
    def make():
        return Lookahead(0.1, momentum=0.5, gradient_accumulation_steps=2)

    ours, plain = (trained(module, wrapper, make, rows=6)[0] for module in (unisono, keras))
    weights = slice(0, 4)
    helpers.assert_close(ours[weights], plain[weights], helpers.FLOAT32)
