"""A decoder whose attention is in blocks trains as with plain Keras, wherever and whatever feeds it."""

import helpers
import keras
import pytest
import tensorflow as tf
from attention_decoder import (
    BATCH,
    DATA,
    SAMPLES,
    X,
    Y,
    compute_in_blocks,  # noqa: F401  (a fixture)
    decoder,
    fitted,
    of_keras,
    weights_of,
)
from helpers import FLOAT64, assert_close, descend, mirrored, scope
from meshes import distribution_for, strategy_for

import unisono
from unisono.distribute import Pipeline, sharded

pytestmark = pytest.mark.usefixtures("float64")
HEADS = {
    "attention/(query|key|value)/kernel": (None, "model", None),
    "attention/(query|key|value)/bias": ("model", None),
    "attention/attention_output/kernel": ("model", None, None),
    "embedding/embeddings": (None, "model"),
}


def under(strategy, **options):
    """As on one device."""
    with scope(strategy):
        model = decoder(**options)
    return fitted(model)


def parts():
    """The batches of an epoch."""
    return [(X[at : at + BATCH], Y[at : at + BATCH]) for at in range(0, SAMPLES, BATCH)]


def generated():
    """From a generator."""
    return fitted(decoder(), iter(parts()), steps_per_epoch=3)


class OwnStep(unisono.Model):
    """A custom step."""

    def train_step(self, data):
        x, y = data
        loss = descend(
            lambda: self.compute_loss(x, y, self(x, training=True)), self.optimizer, self.trainable_variables
        )
        return {"loss": loss}


def in_loop(replicas, wraps):
    """A custom loop."""
    strategy = mirrored(replicas)
    with scope(strategy):
        model = decoder(optimizer=lambda: unisono.optimizers.SGD(0.1, momentum=0.5))
        model.optimizer.build(model.trainable_variables)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @wraps
    def train(x, y):
        return descend(
            lambda: criterion(y, model(x, training=True)), model.optimizer, model.trainable_variables
        )

    step = tf.function(lambda *batch: strategy.run(train, args=batch))
    for batch in strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(DATA).batch(BATCH)
    ):
        step(*batch)
    return [weights_of(model)]


def on_mesh(*shape):
    """Heads divided over the model's axis."""
    return under(strategy_for(shape, HEADS))


def with_distribution(distribution):
    """As a program of `keras.distribution` asks for it."""
    keras.distribution.set_distribution(distribution)
    try:
        return fitted(decoder())
    finally:
        keras.distribution.set_distribution(None)


def tensors():
    return tf.data.Dataset.from_tensor_slices(DATA).batch(BATCH)


CPUS = ["CPU:0", "CPU:1"]
WAYS = {
    "graph": lambda: fitted(decoder()),
    "XLA": lambda: fitted(decoder(jit_compile=True)),
    "eager": lambda: fitted(decoder(run_eagerly=True)),
    "several steps in a call": lambda: fitted(decoder(steps_per_execution=3)),
    "generator": generated,
    "tf.data": lambda: fitted(decoder(), tensors()),
    "PyDataset": lambda: fitted(decoder(), helpers.Batches(parts())),
    "own step": lambda: fitted(decoder(OwnStep))[1:],  # it logs the last loss
    "own step on 3 replicas": lambda: under(mirrored(3), kind=OwnStep)[1:],
    "one device's strategy": lambda: under(helpers.strategy("one")),
    "2 replicas": lambda: under(mirrored(2)),
    "3 replicas": lambda: under(mirrored(3)),
    "3 replicas with XLA": lambda: under(mirrored(3), jit_compile=True),
    "central storage": lambda: under(helpers.strategy("central2")),
    "sharded optimizer": lambda: under(sharded(mirrored(3))),
    "sharded weights": lambda: under(sharded(mirrored(2), "weights")),
    "heads on 2 devices": lambda: on_mesh(1, 2),
    "heads on 4 devices": lambda: on_mesh(1, 4),
    "batch and heads on 4 devices": lambda: on_mesh(2, 2),
    "LayoutMap": lambda: with_distribution(distribution_for((2, 2), HEADS)),
    "DataParallel": lambda: with_distribution(keras.distribution.DataParallel(devices=CPUS)),
    "pipeline": lambda: under(Pipeline(CPUS, micro_batches=2)),
    "pipeline on 2 replicas": lambda: under(
        Pipeline([f"CPU:{n}" for n in range(4)], micro_batches=2, replicas=2)
    ),
    "loop of replica steps": lambda: in_loop(2, unisono.replica_step),
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_training_in_blocks_equals_keras(way, in_blocks):
    found, expected = WAYS[way](), of_keras()
    assert_close(found, expected[-len(found) :], FLOAT64, way)
    assert len(in_blocks) >= 2
