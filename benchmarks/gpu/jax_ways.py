"""A loop written by hand in JAX on Keras' models, one compiled step a call."""

from __future__ import annotations

from typing import Any

import jax
import keras

from .keras_models import build
from .task import Task
from .tensorflow_ways import loss, rounds


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
    optimizer.build(model.trainable_variables)

    def scaled_loss(weights: Any, others: Any, slots: Any, x: Any, y: Any) -> Any:
        outputs, others = model.stateless_call(weights, others, x, training=True)
        value = loss_of(y, outputs)
        with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, slots))):
            return optimizer.scale_loss(value), (value, others)

    @jax.jit
    def step(state: Any, x: Any, y: Any) -> Any:
        weights, others, slots = state
        gradient = jax.grad(scaled_loss, has_aux=True)
        gradients, (value, others) = gradient(weights, others, slots, x, y)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return (weights, others, slots), value

    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    kept = {"state": tuple([v.value for v in group] for group in variables)}
    x, y = task.arrays()
    size = task.size.batch
    batches = [(jax.device_put(x[i : i + size]), jax.device_put(y[i : i + size])) for i in (0, size)]

    def run(i: int) -> Any:
        kept["state"], value = step(kept["state"], *batches[i % 2])
        return value

    return rounds(task.steps, run, float)


def peak_bytes() -> int | None:
    """The most memory of the GPU that JAX has had in use; None where it does not say."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
