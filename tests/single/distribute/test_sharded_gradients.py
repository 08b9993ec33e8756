"""Sharded gradients: sharded like their variables, with few full-size gradients at a time."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unisono
from unisono.compat.tensorflow_graphs.gradients import is_of_a_gradient
from unisono.distribute import replicas, sharded

X = np.random.default_rng(1).normal(size=(10, 8)).astype("float32")
SIDE = 8 * 8 * 4  # bytes of the gradient of a square layer


class CustomStep(unisono.Sequential):
    """Several gradients, optimizers or reads in one step, as given by its `step`."""

    def train_step(self, data):
        return self.step(self, *data)


def with_two_optimizers(model, x, y):
    """One for the first layers, one for the last; the gradients come from one tape."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    pairs = list(zip(gradients, model.trainable_variables))
    for optimizer, part in ((model.optimizer, pairs[:8]), (model.other, pairs[8:])):
        optimizer.apply_gradients(part)
    return {"loss": loss}


def with_two_tapes(model, x, y):
    """Two gradients in sequence; the second sees the update of the first."""
    for factor in (1.0, 0.5):
        loss_of = lambda factor=factor: factor * model.compute_loss(x, y, model(x, training=True))  # noqa: E731
        loss = helpers.descend(loss_of, model.optimizer, model.trainable_variables)
    return {"loss": loss}


def against_the_order(model, x, y):
    """The gradients of the first layers are computed last, and sent first."""
    loss_of = lambda: model.compute_loss(x, y, model(x, training=True))  # noqa: E731
    return {"loss": helpers.descend(loss_of, model.optimizer, model.trainable_variables[::-1])}


def trained(strategy, step=None, **options):
    def make():
        stack = [layers.Dense(8, "tanh") for _ in range(7)]
        model = (unisono.Sequential if step is None else CustomStep)([keras.Input((8,)), *stack])
        model.step, model.other = step, unisono.optimizers.SGD(0.1)
        return model

    compiled = {"optimizer": lambda: unisono.optimizers.Adam(0.01), "steps_per_execution": 1, **options}
    return helpers.train(make, (X, X), strategy, {"batch_size": 5, "epochs": 1}, **compiled)[0]


@pytest.mark.short("weights-against_the_order")
@pytest.mark.parametrize("step", [None, with_two_optimizers, with_two_tapes, against_the_order])
@pytest.mark.parametrize("level", ["optimizer", "weights"])
def test_backward_pass_waits_for_the_sums_of_its_gradients(level, step, monkeypatch):
    monkeypatch.setattr(replicas, "_BYTES_PER_PACK", SIDE // 4)
    model = trained(sharded(helpers.mirrored(2), level), step)
    expected = trained(None, step, run_eagerly=True)
    helpers.assert_close(model.get_weights(), expected.get_weights(), helpers.FLOAT32)
    (graph,) = {each.graph for g in helpers.graphs_of(model.train_function.graph()) for each in sums_in(g)}
    assert len(sums_in(graph)) in (14, 2 * 14)
    # Two large gradients are kept, and some vectors; against the order nothing can be sent before everything is computed.
    most = 7 * SIDE + 7 * 32 if step is against_the_order else 2 * SIDE + SIDE // 4 + 2 * 32
    assert SIDE < whole_at_once(graph) <= most


def sums_in(graph):
    """The sums of packs on the first replica, each with its gradients: operations and their bytes."""
    found = {}
    for op in graph.get_operations():
        if op.type == "AddN" and op.device.endswith("CPU:0") and not is_of_a_gradient(op):
            todo, gradients = [op.inputs[0]], {}
            while todo:
                tensor = todo.pop()
                if is_of_a_gradient(tensor.op):
                    gradients[tensor.op] = int(np.prod(tensor.shape)) * tensor.dtype.size
                elif tensor.op.type != "AddN":
                    todo.extend(tensor.op.inputs)
            if gradients:
                found[op] = gradients
    return found


def whole_at_once(graph):
    """The most bytes of full-size gradients that may exist at once, according to the dependencies in a graph."""
    sums = sorted(sums_in(graph).items(), key=lambda pair: pair[0]._id)
    most = 0
    for index, (_, gradients) in enumerate(sums):
        summed = set.intersection(*map(all_before, gradients))
        kept = [earlier for total, earlier in sums[:index] if total.name not in summed]
        most = max(most, sum(sum(each.values()) for each in (*kept, gradients)))
    return most


def all_before(op):
    """The names of the operations that one waits for."""
    found, todo = set(), [op]
    while todo:
        op = todo.pop()
        for each in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if each.name not in found:
                found.add(each.name)
                todo.append(each)
    return found
