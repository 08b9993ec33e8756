"""The hand-written JAX loop: `lax.scan` over the steps of an epoch, compiled as a whole, with the data on the device.

It calls Keras' model and Adam through their stateless API, so that the computation is the same for all trainers.
"""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from . import keras_models
from .task import BATCH, Task, Train, arrays, timed_epochs


def make(name: str, task: Task) -> Train:
    """A new model of `task` and its loop, not yet traced."""
    model = keras_models.build(keras, task)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    frozen = [v.value for v in model.non_trainable_variables]

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        return loss(y, model.stateless_call(weights, frozen, x, training=True)[0])

    @jax.jit
    def run(state: Any, xs: Any, ys: Any, order: Any) -> Any:
        def body(state: Any, indices: Any) -> Any:
            weights, optimizer_state = state
            value, gradients = jax.value_and_grad(loss_of)(weights, xs[indices], ys[indices])
            weights, optimizer_state = optimizer.stateless_apply(optimizer_state, gradients, weights)
            return (weights, optimizer_state), value

        state, losses = jax.lax.scan(body, state, order)
        return state, losses[-1]

    weights = [v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]
    kept: dict[str, Any] = {"state": weights}
    on_device: dict[int, Any] = {}

    def epoch(steps: int) -> None:
        if steps not in on_device:
            on_device[steps] = [jax.device_put(a) for a in arrays(task.model, steps)]
        order = np.random.permutation(steps * BATCH).reshape(steps, BATCH)
        kept["state"], value = run(kept["state"], *on_device[steps], order)
        assert np.isfinite(np.asarray(value))

    return lambda epochs, steps, goes_on=False: timed_epochs(epochs, lambda: epoch(steps))
