"""A hand-written JAX loop on Keras' models, with one compiled step per call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras

from .keras_models import build
from .task import Task
from .tensorflow_trainers import loss, rounds


def loop(task: Task) -> list[float]:
    """Seconds of each round."""
    half = task.precision in ("bfloat16", "float16")
    keras.config.set_dtype_policy(f"mixed_{task.precision}" if half else "float32")
    jax.config.update(
        "jax_default_matmul_precision", "tensorfloat32" if task.precision == "tf32" else "highest"
    )
    model, loss_of = build(task), loss()
    optimizer: Any = keras.optimizers.Adam(1e-4)
    if task.precision == "float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    run = make_step(model, loss_of, optimizer)
    x, y = task.arrays()
    size = task.size.batch
    batches = [(jax.device_put(x[i : i + size]), jax.device_put(y[i : i + size])) for i in (0, size)]
    return rounds(task.steps, lambda i: run(*batches[i % 2]), float)


def make_step(model: Any, loss_of: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """Return a function of a batch that trains with it, and returns its loss."""
    optimizer.build(model.trainable_variables)

    def scaled_loss(weights: Any, others: Any, optimizer_state: Any, x: Any, y: Any) -> Any:
        outputs, others = model.stateless_call(weights, others, x, training=True)
        value = loss_of(y, outputs)
        with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, optimizer_state))):
            return optimizer.scale_loss(value), (value, others)

    @jax.jit
    def step(state: Any, x: Any, y: Any) -> Any:
        weights, others, optimizer_state = state
        gradient = jax.grad(scaled_loss, has_aux=True)
        gradients, (value, others) = gradient(weights, others, optimizer_state, x, y)
        weights, optimizer_state = optimizer.stateless_apply(optimizer_state, gradients, weights)
        return (weights, others, optimizer_state), value

    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    kept = {"state": tuple([v.value for v in group] for group in variables)}

    def run(x: Any, y: Any) -> Any:
        kept["state"], value = step(kept["state"], x, y)
        return value

    return run


def peak_bytes() -> int | None:
    """JAX's peak memory on the GPU in bytes; None if JAX does not report it."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
