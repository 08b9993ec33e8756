"""The optimizer of a case."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import unisono

from ..case import Case

# Large, so that a gradient that is zero except for rounding changes nothing: with Keras' 1e-7, Adam takes
# a full-size step in its direction.
EPSILON = 1e-2
# Small: a sum that overflows half precision on one device may not if each replica adds fewer samples.
LOSS_SCALE = 16.0

ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"learning_rate": 0.05}),
    "momentum": ("SGD", {"learning_rate": 0.02, "momentum": 0.9, "nesterov": True}),
    "Adam": ("Adam", {"learning_rate": 0.02, "epsilon": EPSILON}),
    "AdamW": ("AdamW", {"learning_rate": 0.02, "epsilon": EPSILON, "weight_decay": 0.01}),
    "RMSprop": ("RMSprop", {"learning_rate": 0.01, "epsilon": EPSILON}),
    "Adagrad": ("Adagrad", {"learning_rate": 0.05, "epsilon": EPSILON}),
    "Nadam": ("Nadam", {"learning_rate": 0.02, "epsilon": EPSILON}),
    "Adamax": ("Adamax", {"learning_rate": 0.02, "epsilon": EPSILON}),
    "Adadelta": ("Adadelta", {"learning_rate": 0.5, "epsilon": EPSILON}),
    "Ftrl": ("Ftrl", {"learning_rate": 0.05}),
    "Lamb": ("Lamb", {"learning_rate": 0.01, "epsilon": EPSILON}),
    "Adafactor": ("Adafactor", {"learning_rate": 0.01, "epsilon_1": 1e-3}),
    "ScheduleFreeAdamW": ("ScheduleFreeAdamW", {"learning_rate": 0.02, "epsilon": EPSILON}),
    "Muon": ("Muon", {"learning_rate": 0.02, "epsilon": EPSILON}),
}  # Lion is not drawn: it moves a weight by its gradient's sign, even if that is a rounding error around zero.

CLIPS = {
    "none": {},
    "clipnorm": {"clipnorm": 0.2},
    "clipvalue": {"clipvalue": 0.1},
    "global_clipnorm": {"global_clipnorm": 0.3},
}


def _doubled(pairs: Any) -> Any:
    dense = [(None if gradient is None else tf.convert_to_tensor(gradient), v) for gradient, v in pairs]
    return [(None if gradient is None else 2.0 * gradient, v) for gradient, v in dense]


TRANSFORMERS = {
    "centralize": lambda: unisono.optimizers.centralize,
    "ClipByGlobalNorm": lambda: unisono.optimizers.ClipByGlobalNorm(0.2),
    "doubled": lambda: _doubled,
}


def optimizer(case: Case, module: Any) -> keras.optimizers.Optimizer:
    """A new optimizer of `module.optimizers`."""
    if case.optimizer == "two optimizers":
        chosen = {True: _one("Adam", case, module), False: _one("momentum", case, module)}
        inner = module.optimizers.MultiOptimizer(lambda variable: chosen[len(variable.shape) < 2])
    else:
        inner = _one(case.optimizer, case, module)
    if case.aggregator != "none" and module is unisono:
        inner.gradient_aggregator = unisono.optimizers.PackedAggregation(max_elements=16)
    if case.policy != "mixed_float16":
        return inner
    return module.optimizers.LossScaleOptimizer(inner, initial_scale=LOSS_SCALE)


def _one(kind: str, case: Case, module: Any) -> keras.optimizers.Optimizer:
    name, arguments = ARGUMENTS[kind]
    arguments = {**arguments, **CLIPS[case.clip]}
    if case.ema:
        arguments.update(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2)
    if case.accumulation > 1:
        arguments["gradient_accumulation_steps"] = case.accumulation
    if case.transformers and module is unisono:
        arguments["gradient_transformers"] = [TRANSFORMERS[name]() for name in case.transformers]
    if case.schedule:
        arguments["learning_rate"] = keras.optimizers.schedules.ExponentialDecay(
            arguments["learning_rate"], decay_steps=2, decay_rate=0.7
        )
    return getattr(module.optimizers, name)(**arguments)
