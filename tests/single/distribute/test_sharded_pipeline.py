"""Optimizer state of a pipeline stage, sharded over its replicas: same results, full-size for readers."""

from __future__ import annotations

from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.compat.keras_private.variables import raw_value
from unisono.trainer.pipeline.planning.placement import follow_inputs

layers, optimizers = keras.layers, keras.optimizers
pytestmark = pytest.mark.usefixtures("float64")
rng = np.random.default_rng(3)
X, Y = rng.integers(0, 9, (22, 4)), rng.normal(size=(22, 3))


def program(optimizer: Any, eager: bool) -> keras.Model:
    """An embedding, a bias with fewer rows than replicas, weights that do not divide by two."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,), dtype="int32")
    hidden = layers.Flatten()(layers.Embedding(9, 3)(inputs))
    hidden = layers.Dense(5, activation="tanh", kernel_regularizer="l2")(hidden)
    hidden = layers.Dense(1, activation="tanh", kernel_constraint="max_norm")(hidden)
    model = unisono.Model(inputs, layers.Dense(3)(hidden))
    model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=eager)
    return model


def pipeline(replicas: int = 2, level: str | None = "optimizer") -> unisono.distribute.Pipeline:
    devices = [f"CPU:{index}" for index in range(2 * replicas)]
    made = unisono.distribute.Pipeline(devices, micro_batches=2, replicas=replicas)
    return made if level is None else unisono.distribute.sharded(made, level=level)


def trained(on: Any, optimizer: Any, epochs: int = 2, eager: bool = True, **fit: Any) -> Any:
    with on.scope():
        model = program(optimizer, eager)
    model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **fit)
    return model


def state(model: Any) -> list[Any]:
    return [np.array(v.numpy()) for v in [*model.variables, *model.optimizer.variables]]


class Outside:
    def scope(self) -> Any:
        return tf.device("CPU:0")


@pytest.mark.short("averages")
@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizers.AdamW(0.01, global_clipnorm=0.1, weight_decay=0.1, epsilon=1e-3),
        lambda: optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1, use_ema=True, ema_overwrite_frequency=3),
        lambda: optimizers.RMSprop(0.01, gradient_accumulation_steps=2),
        lambda: optimizers.Lamb(0.01),
    ],
    ids=["adamw", "averages", "accumulation", "whole weights"],
)
def test_optimizer_state_sharded_give_the_results_of_one_device(make):
    model = trained(pipeline(), make(), eager=False)
    helpers.assert_close(state(model), state(trained(Outside(), make(), eager=False)), helpers.FLOAT64)
    held = [raw_value(v) for v in model.optimizer.variables]
    parts = [value.variables for value in held if hasattr(value, "variables")]
    assert len(parts) >= 5, "most of the optimizer state is sharded"
    for each in parts:
        assert len({part.device for part in each}) == 2
        assert max(part.shape[0] for part in each) - min(part.shape[0] for part in each) <= 1


def test_the_rule_runs_where_the_optimizer_state_are():
    model = trained(pipeline(), optimizers.Adam(0.01), epochs=1)

    @tf.function
    def update(gradients: Any) -> None:
        with follow_inputs():
            model.optimizer.apply(gradients)

    graph = update.get_concrete_function([tf.zeros(v.shape, v.dtype) for v in model.trainable_weights]).graph
    parts = {(5, 3): "CPU:0", (4, 3): "CPU:2"}  # of the embedding's optimizer state
    places: dict[Any, list[str]] = {shape: [] for shape in parts}
    for op in graph.get_operations():
        for output in op.outputs:
            if output.shape.rank and tuple(output.shape) in parts and op.type != "ReadVariableOp":
                places[tuple(output.shape)].append(op.device[-5:])
    for shape, device in parts.items():
        assert len(places[shape]) > 10, "operations of the update rule"
        assert set(places[shape]) == {device}, places


def test_a_saved_model_has_whole_optimizer_state_and_opens_anywhere(tmp_path):
    model = trained(pipeline(), optimizers.Adam(0.01))
    model.save(tmp_path / "model.keras")
    plain = keras.saving.load_model(tmp_path / "model.keras")
    helpers.assert_equal(plain.optimizer.variables, state(model)[len(model.variables) :])
    with pipeline(level="optimizer").scope():
        other = unisono.load_model(tmp_path / "model.keras")
    for each in (model, other):
        each.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    helpers.assert_close(state(other), state(model), 0.0)
    assert any(hasattr(raw_value(v), "variables") for v in other.optimizer.variables)


def test_a_checkpoint_of_tensorflow_has_whole_optimizer_state(tmp_path):
    model = trained(pipeline(), optimizers.Adam(0.01))
    before = state(model)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "checkpoint"))
    model.fit(X, Y, batch_size=8, verbose=0)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path).assert_consumed()
    helpers.assert_close(state(model), before, 0.0)


@pytest.mark.short("optimizer")
@pytest.mark.parametrize("level", ["optimizer", None])
def test_a_backup_is_resumed_with_and_without_parts(level, tmp_path):
    def train(*callbacks):
        on = pipeline(level=level if len(callbacks) == 1 else "optimizer")
        return trained(on, optimizers.Adam(0.01), epochs=4, callbacks=[*callbacks])

    whole, resumed = train(), helpers.resumed(train, tmp_path, 7)
    helpers.assert_close(state(resumed), state(whole), 0.0 if level else helpers.FLOAT64)


def test_what_a_pipeline_cannot_shard_is_rejected():
    with pytest.raises(ValueError, match=r"use more stages\. Received: 'weights'"):
        pipeline(level="weights")
    made = pipeline(level=None)
    trained(made, optimizers.Adam(0.01), epochs=1)
    with pytest.raises(ValueError, match="right after"):
        unisono.distribute.sharded(made)


@pytest.mark.long
def test_with_one_replica_nothing_changes():
    model = trained(pipeline(replicas=1), optimizers.Adam(0.01), epochs=1)
    assert not any(hasattr(raw_value(v), "variables") for v in model.optimizer.variables)
