"""Sharded weights: full-size for user code that reads them, and only while a step uses them."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from mesh_in_parts import MeshParts

import unisono
from unisono import optimizers
from unisono.distribute import sharded
from unisono.distribute.sharding.sharded_value import ShardedWeight
from unisono.trainer.partition.program import Convert

pytestmark = pytest.mark.usefixtures("float64")
random = np.random.default_rng(1)
TOKENS = random.integers(0, 7, size=(10, 4))
X = random.normal(size=(10, 4))
Y = random.normal(size=(10, 2))


class Tied(unisono.Model):
    """Reads the weight of a layer that it has called."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = layers.Embedding(7, 5), layers.Dense(5, "tanh")

    def call(self, x):
        hidden = self.inner(self.table(x))
        return keras.ops.mean(keras.ops.matmul(hidden, keras.ops.transpose(self.table.embeddings)), 1)[:, :2]


class InNestedGraphs(helpers.TwoLayers):
    """Reads weights in a function, a branch and a loop in the graph."""

    def __init__(self):
        super().__init__()
        self.square = layers.Dense(6, "tanh")
        self.function = tf.function(self.square.__call__)

    def call(self, x):
        hidden = self.function(self.first(x))
        hidden = tf.cond(tf.reduce_sum(hidden) > -1e9, lambda: self.square(hidden), lambda: hidden)
        hidden = tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, self.square(h)), (0, hidden))[1]
        return self.last(hidden)


class MovesWeights(helpers.TwoLayers):
    """Sharpness-aware minimization: the gradient at weights that the step has perturbed."""

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        pairs = zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return loss, [g for g, _ in self.optimizer.aggregate_gradients(pairs)]

    def train_step(self, data):
        x, y = data
        loss, gradients = self.gradients(x, y)
        norm = tf.linalg.global_norm(gradients)
        for variable, gradient in zip(self.trainable_variables, gradients):
            variable.assign_add(0.05 * gradient / norm)
        _, moved = self.gradients(x, y)
        for variable, gradient in zip(self.trainable_variables, gradients):
            variable.assign_sub(0.05 * gradient / norm)
        self.optimizer.apply_gradients(zip(moved, self.trainable_variables), skip_gradients_aggregation=True)
        return {"loss": loss}


class PenalizesSlopes(helpers.GradientsOfItsOwn, helpers.TwoLayers):
    """A gradient of a gradient, in a custom step."""

    def loss_of(self, x, y):
        with tf.GradientTape() as inner:
            inner.watch(x)
            outputs = self(x, training=True)
        slopes = inner.gradient(outputs, x)
        return self.compute_loss(x, y, outputs) + keras.ops.mean(keras.ops.sum(slopes**2, 1))


def recurrent():
    both, one = layers.Bidirectional(layers.LSTM(2, return_sequences=True)), layers.GRU(3)
    tokens = keras.Input((4,), dtype="int64"), layers.Embedding(7, 3)
    return unisono.Sequential([*tokens, both, one, layers.Dense(2, kernel_regularizer="l2")])


def adapted():
    """Frozen weights with two small trainable adapters."""
    model = unisono.Sequential([keras.Input((4,)), layers.Dense(5, "gelu"), layers.Dense(5), layers.Dense(2)])
    model.layers[1].enable_lora(2)
    model.layers[0].trainable = False
    return model


def normalized():
    hidden = layers.SpectralNormalization(layers.Dense(5, "tanh"))
    return unisono.Sequential([keras.Input((4,)), hidden, layers.Dense(2, kernel_constraint="max_norm")])


PROGRAMS = {
    "recurrent": (recurrent, TOKENS),
    "tied": (Tied, TOKENS),
    "nested graphs": (InNestedGraphs, X),
    "moves weights": (MovesWeights, X),
    "penalizes slopes": (PenalizesSlopes, X),
    "adapted": (adapted, X),
    "normalized": (normalized, X),
}


def trained(strategy, make, x, **options):
    adam = lambda: optimizers.AdamW(0.05, global_clipnorm=0.5)  # noqa: E731
    return helpers.train(make, (x, Y), strategy, {"batch_size": 5}, optimizer=adam, **options)[0]


@pytest.mark.short("tied")
@pytest.mark.parametrize("name", PROGRAMS)
def test_user_code_sees_whole_weights_and_gets_the_results_of_one_device(name, recwarn):
    make, x = PROGRAMS[name]
    model = trained(sharded(helpers.mirrored(2), "weights"), make, x)
    assert all(isinstance(v.value, ShardedWeight) for v in model.trainable_variables if v.shape.rank > 1)
    expected = trained(None, make, x, run_eagerly="graphs" not in name)
    exact = helpers.FLOAT64 if name != "adapted" else helpers.FLOAT32  # LoRA's weights are float32
    helpers.assert_close(model.get_weights(), expected.get_weights(), exact, name)
    helpers.assert_close(model.predict(x, verbose=0), expected.predict(x, verbose=0), exact)
    helpers.assert_close(model.evaluate(x, Y, verbose=0), expected.evaluate(x, Y, verbose=0), exact)
    assert not [each for each in recwarn if "runs on one replica" in str(each.message)]


@pytest.mark.parametrize(("policy", "size"), [("float32", 64), ("mixed_bfloat16", 32)])
def test_weights_are_gathered_in_the_dtype_of_their_use_and_again_for_the_backward_pass(policy, size):
    keras.config.set_dtype_policy(policy)
    with sharded(helpers.mirrored(2), "weights").scope():
        stack = [layers.Dense(4, use_bias=False) for _ in range(5)]
        model = unisono.Sequential([keras.Input((4,)), *stack])
        model.compile(optimizers.SGD(0.05), "mse")
    found = model.explain_step(X, X).collectives
    gathers = [each.bytes for each in found if each.kind == "all-gather"]
    # Five, and again the second and third for the backward pass; the last two are whole when it begins.
    assert gathers == [size] * 7


def test_no_weight_stays_whole_from_the_forward_to_the_backward_pass():
    def fn(x, *weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            for weight in weights:
                x = tf.tanh(x @ weight)
            loss = tf.reduce_sum(x**2)
        return [loss, *tape.gradient(loss, weights)]

    weights = [(random.normal(size=(4, 4)), (number % 2, None)) for number in range(5)]
    parts = MeshParts(fn, [X], weights, parts=1, again=True).check([(6, 4), (10, 0)])
    nodes = parts.program.nodes
    gathers = [
        node
        for node in nodes
        if isinstance(node, Convert) and parts.program.communicates(node) and not node.after
    ]
    gathers += [node for node in nodes if isinstance(node, Convert) and node.after]
    assert len(gathers) >= 7
    whole = {}
    for at, node in enumerate(nodes):
        for number in {*node.inputs} & {
            each.target for each in gathers if parts.program.labels_around(each)[0].is_stored
        }:
            whole.setdefault(number, []).append(at)
    assert len(whole) == 7
    alive = [sum(uses[0] <= at <= uses[-1] for uses in whole.values()) for at in range(len(nodes))]
    assert max(alive) == 2
    waiting = [node for node in gathers if node.target in whole and node.after]
    assert len(waiting) == 6  # each but the first for an input of the product before: it overlaps with it


@pytest.mark.short("mixed_float16")
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_gives_the_bits_of_whole_weights(policy):
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)

    def attention():
        tokens = keras.Input((4,), dtype="int64")
        hidden = layers.Embedding(7, 4)(tokens)
        hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 2)(hidden, hidden))
        return unisono.Model(tokens, layers.Dense(2)(layers.GlobalAveragePooling1D()(hidden)))

    whole = trained(helpers.mirrored(2), attention, TOKENS)
    model = trained(sharded(helpers.mirrored(2), "weights"), attention, TOKENS)
    helpers.assert_equal(model.get_weights(), whole.get_weights())


def test_weights_are_created_sharded_with_the_values_of_one_device():
    def weights(strategy):
        keras.utils.set_random_seed(3)
        with helpers.scope(strategy):
            model = unisono.Sequential([keras.Input((4,)), layers.Dense(3), layers.BatchNormalization()])
        return model.weights

    found, expected = weights(sharded(helpers.mirrored(3), "weights")), weights(None)
    kernel, *vectors = found
    assert [int(shard.shape[0]) for shard in kernel.value.shards] == [4, 4, 4]
    assert not any(isinstance(v.value, ShardedWeight) for v in vectors)
    helpers.assert_equal(found, expected)
    with tf.GradientTape() as tape:  # outside a step it is full-size, too
        loss = tf.reduce_sum(tf.convert_to_tensor(kernel) ** 2)
    np.testing.assert_allclose(tape.gradient(loss, kernel), 2 * kernel.numpy())


def test_xla_for_all_of_a_step_and_exports_are_rejected(tmp_path):
    with sharded(helpers.mirrored(2), "weights").scope():
        model = unisono.Sequential([keras.Input((4,)), layers.Dense(2)])
        model.compile("sgd", "mse", jit_compile=True)
    try:
        model.export(tmp_path / "exported", verbose=False)
        exported = tf.saved_model.load(tmp_path / "exported")  # Keras 3.16 exports the values
        np.testing.assert_allclose(exported.serve(X), model.predict(X, verbose=0), rtol=1e-6)
    except ValueError as error:
        assert "is sharded, so the model cannot be exported: save it with" in str(error)
    with pytest.raises(ValueError, match="`jit_compile=True` does not work with sharded weights"):
        model.fit(X, Y, verbose=0)
