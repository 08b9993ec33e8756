"""Computes the statistics of `BatchNormalization` layers anew, in one pass over the training data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.keras_private.layers import layers_of
from ...compat.keras_private.training import unpack_x_y_sample_weight
from ...compat.shared_change import shared_attributes
from ...distribute.parameter_servers.updates import on_parameter_servers
from ..step.train_step import forward
from .loops.compiled_calls import compiled_calls
from .loops.loop_choice import loop_for
from .loops.step_function import StepFunction
from .worker_settlement import Workers


def check_renewal(model: TrainedModel, asked_by: str) -> None:
    """Rejects a fit in which `renew_batch_statistics` is impossible for its layers."""
    state = model.fit_state
    if state is None or not _layers(model):
        return
    why = None
    if on_parameter_servers(model.distribute_strategy) or model._pipeline is not None:
        why = "parameter servers and pipelines cannot make that pass: use a mirrored strategy"
    elif not state.source.rewinds and state.source.position.given_steps is None:
        why = "`x` is a generator, which cannot be read again: give `steps_per_epoch`, or a keras.utils.PyDataset"
    if why is not None:
        raise ValueError(
            f"{asked_by} computes the statistics of `BatchNormalization` layers in one more pass over the data, but {why}. "
            f"Received: the layer {_layers(model)[0].name!r}"
        )


def renew_batch_statistics(model: TrainedModel) -> None:
    """Sets the moving mean and variance of every such layer to the mean over the batches of one more epoch.

    Context: host, at the end of `fit`; on every worker.
    """
    layers, state = _layers(model), model.fit_state
    if not layers or state is None:
        return
    variables = [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]
    sums, steps = [np.zeros(v.shape, np.float64) for v in variables], 0

    def step(data: Any) -> dict[str, Any]:
        forward(model, unpack_x_y_sample_weight(data)[0], training=True)
        return {}

    of_one_batch = shared_attributes("momentum", [(layer, lambda _: 0.0) for layer in layers])
    with of_one_batch, model._strategy_scope():
        function = StepFunction(model, False, step, loop_for)
        state.source.begin_epoch(state.epoch)
        workers = Workers(model, "stop_evaluating")
        model.stop_evaluating = False
        for call in compiled_calls(state.source, lambda: 1, workers):
            done, _ = function(call, steps)
            call.report(state.source, done)
            if not done:
                break
            steps += done
            for total, variable in zip(sums, variables):
                total += tf.convert_to_tensor(variable.value).numpy()
        if steps:
            for total, variable in zip(sums, variables):
                variable.assign((total / steps).astype(variable.dtype))


def _layers(model: TrainedModel) -> list[Any]:
    kind = keras.layers.BatchNormalization
    return [layer for layer in layers_of(model) if isinstance(layer, kind) and layer.trainable]
