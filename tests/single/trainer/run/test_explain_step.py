"""`explain_step` reports what replicas communicate, how much, and which line causes it."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from meshes import strategy_for

import unisono

X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


class Contrastive(unisono.Sequential):
    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        return {"loss": helpers.descend(lambda: self.loss_of(x), self.optimizer, self.trainable_variables)}

    def loss_of(self, x):
        z = self(x, training=True)
        similar = tf.matmul(z, z, transpose_b=True)
        return tf.reduce_mean(tf.square(similar)) - tf.reduce_mean(tf.linalg.diag_part(similar))


def made(kind, strategy):
    with helpers.scope(strategy):
        model = kind([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile(unisono.optimizers.SGD(0.1), "mse")
    return model


def test_built_in_step_all_reduces_its_gradients_alone():
    found = made(unisono.Sequential, helpers.mirrored(2)).explain_step(X, X[:, :3])
    (gradients,) = found.collectives
    assert (gradients.kind, gradients.bytes) == ("all-reduce", (4 * 3 + 3) * 4)
    assert found.replicas == 2 and found.samples == 6 and not found.whole
    assert dict(found.exits)["loss/total"] == "partial sum"


def test_collectives_on_a_mesh_have_the_bytes_of_one_replica():
    with strategy_for((2, 2), {".*dense/kernel": ("model", None), ".*wide/kernel": (None, "model")}).scope():
        model = unisono.Sequential(
            [keras.Input((4,)), keras.layers.Dense(6, name="wide"), keras.layers.Dense(3, name="dense")]
        )
        model.compile(unisono.optimizers.SGD(0.1), "mse", jit_compile=False)
    found = model.explain_step(X, X[:, :3]).collectives
    products = next(each for each in found if each.kind == "all-reduce" and each.over == "model")
    assert (products.what, products.bytes) == ("3x3 float32", 3 * 3 * 4), "half of the samples"
    gradients = next(each for each in found if each.kind == "all-reduce" and each.over == "batch")
    assert gradients.bytes == 4 * (4 * 3 + 3 * 3), "halves of the kernels"


@pytest.mark.as_for_users  # operations have source lines
def test_gathered_tensor_is_named_with_its_bytes_and_its_line():
    found = made(Contrastive, helpers.mirrored(2)).explain_step(X)
    gathered = next(each for each in found.collectives if each.kind == "all-gather")
    assert gathered.bytes == 6 * 3 * 4 and gathered.line.startswith("test_explain_step.py:")
    assert "samples are compared" in gathered.reason
    assert gathered.line in str(found) and "(72 bytes)" in str(found)


def test_step_gets_the_batch_that_fit_would_pass():
    class Unpacks(unisono.Sequential):
        def train_step(self, data):
            x, y = data
            return super().train_step((x, y))

    assert not made(Unpacks, helpers.mirrored(2)).explain_step(X, X[:, :3]).whole


SEEN = {"seen": lambda: tf.Variable(0.0, trainable=False)}
TABLE = {"table": lambda: tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)}
WITH_EFFECTS = {
    "numpy": ({}, lambda model, x: tf.numpy_function(np.copy, [x], tf.float32), "pass `stateful=False` to"),
    "python": ({}, lambda model, x: tf.py_function(tf.identity, [x], tf.float32), "in the input pipeline or"),
    "branch": (
        SEEN,
        lambda model, x: tf.cond(x[0, 0] > 0, lambda: model.seen.assign_add(1.0), lambda: model.seen + 0.0),
        "write outside of it, for example `variable.assign(tf.where(",
    ),
    "table": (TABLE, lambda model, x: model.table.insert(tf.cast(x[:, 0], tf.int64), x[:, 1]), "callback"),
}


@pytest.mark.as_for_users  # operations have source lines
@pytest.mark.parametrize("kind", WITH_EFFECTS)
def test_step_that_is_not_partitioned_names_the_line_and_what_to_do(kind):
    state, effect, instead = WITH_EFFECTS[kind]

    class HasEffects(unisono.Sequential):
        def train_step(self, data):
            effect(self, data[0])
            return super().train_step(data)

    strategy = helpers.mirrored(2)
    model = made(HasEffects, strategy)
    with strategy.scope():
        vars(model).update({name: make() for name, make in state.items()})
    found = model.explain_step(X, X[:, :3])
    assert "runs on one replica" in str(found)
    assert " in test_explain_step.py:" in found.whole and instead in found.whole


LOOKED_UP = {
    "loop": lambda table, keys: tf.map_fn(table.lookup, keys, fn_output_signature=tf.float32),
    "size": lambda table, keys: table.lookup(keys) * tf.cast(table.size(), tf.float32),
}


@pytest.mark.parametrize("kind", LOOKED_UP)
def test_step_that_reads_a_table_is_partitioned(kind):
    entries = tf.lookup.KeyValueTensorInitializer(tf.range(3), tf.constant([0.5, 1.0, 2.0]))

    class LooksUp(unisono.Sequential):
        def train_step(self, data):
            weights = LOOKED_UP[kind](self.table, tf.cast(data[0][:, 0] > 0, tf.int32))
            return super().train_step((*data, weights))

    model = made(LooksUp, helpers.mirrored(2))
    vars(model)["table"] = tf.lookup.StaticHashTable(entries, 0.0)
    assert not model.explain_step(X, X[:, :3]).whole


def test_explanation_on_one_replica_is_an_error_that_says_what_to_do():
    with pytest.raises(
        ValueError, match=r"`explain_step` needs a strategy with several replicas.*simulate_devices"
    ):
        made(unisono.Sequential, tf.distribute.get_strategy()).explain_step(X, X[:, :3])


def test_explanation_of_a_step_without_targets_asks_for_them():
    with pytest.raises(
        ValueError, match=r"`y` is None, but the model was compiled with loss=.*: pass the targets"
    ):
        made(unisono.Sequential, helpers.mirrored(2)).explain_step(X)
