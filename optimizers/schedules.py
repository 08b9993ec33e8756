"""Every learning rate schedule that Keras has, and one that follows the batch size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import keras
import tensorflow as tf

from ..distribute.arguments import number, one_of, whole_number

if TYPE_CHECKING:
    from keras.optimizers.schedules import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
    from keras.optimizers.schedules import LearningRateSchedule
else:
    LearningRateSchedule = keras.optimizers.schedules.LearningRateSchedule

globals().update(
    {name: value for name, value in vars(keras.optimizers.schedules).items() if not name.startswith("_")}
)


def scaled(
    learning_rate: float | LearningRateSchedule,
    reference_batch_size: int,
    global_batch_size: int,
    rule: Literal["linear", "sqrt"] = "linear",
    warmup_steps: int = 0,
) -> float | LearningRateSchedule:
    """Return the learning rate for a larger (or smaller) global batch than the one it was tuned for.

        k = global_batch_size / reference_batch_size
        rate = k * learning_rate           rule "linear": k times larger steps, k times fewer of them
        rate = sqrt(k) * learning_rate     rule "sqrt": keeps the noise of Adam's steps

    With a warm-up the factor grows linearly from 1 to k (or sqrt(k)) over the first updates.

    Args:
        learning_rate: float or schedule that suits `reference_batch_size`.
        reference_batch_size: samples; the global batch that the rate was tuned for.
        global_batch_size: samples of one update now, such as `unisono.distribute.global_batch_size(64)`; with accumulation,
            of all its micro-batches together.
        rule: `"linear"` (momentum SGD) or `"sqrt"` (Adam and its kin).
        warmup_steps: updates; 0: none.

    Returns:
        A float if `learning_rate` is one and nothing changes with time, else a schedule of updates.

    Raises:
        ValueError: a size that is not a whole number of at least 1, an unknown rule or a negative warm-up.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", sections 2.1 and 2.2 (linear, gradual warm-up);
    Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", section 5 (square root).

    Examples:
        >>> unisono.optimizers.schedules.scaled(0.1, reference_batch_size=256, global_batch_size=1024)
        0.4
    """
    whole_number("reference_batch_size", reference_batch_size)
    whole_number("global_batch_size", global_batch_size)
    whole_number("warmup_steps", warmup_steps, least=0)
    one_of("rule", rule, ("linear", "sqrt"))
    ratio = global_batch_size / reference_batch_size
    factor = ratio if rule == "linear" else math.sqrt(ratio)
    if isinstance(learning_rate, LearningRateSchedule):
        return learning_rate if factor == 1 else ScaledSchedule(learning_rate, factor, warmup_steps)
    number("learning_rate", learning_rate, least=0)
    if warmup_steps == 0 or factor == 1:
        return float(learning_rate * factor)
    return ScaledSchedule(float(learning_rate), factor, warmup_steps)


@keras.saving.register_keras_serializable("unisono")
class ScaledSchedule(LearningRateSchedule):
    """`learning_rate(t) * (1 + (factor - 1) * min(t / warmup_steps, 1))`; what `scaled` returns.

    Args:
        learning_rate: float or schedule.
        factor: float, above 0.
        warmup_steps: updates over which the factor grows from 1; 0: none.
    """

    def __init__(
        self, learning_rate: float | LearningRateSchedule, factor: float, warmup_steps: int = 0
    ) -> None:
        super().__init__()
        if not isinstance(learning_rate, LearningRateSchedule):
            number("learning_rate", learning_rate, least=0)
        number("factor", factor, above=0)
        whole_number("warmup_steps", warmup_steps, least=0)
        self.base, self.factor, self.warmup_steps = learning_rate, factor, warmup_steps

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of update `step`, counted from 0; float32 scalar."""
        base = self.base(step) if callable(self.base) else tf.constant(self.base, tf.float32)  # type: ignore[operator]
        if not self.warmup_steps:
            return base * self.factor
        part = tf.minimum(tf.cast(step, base.dtype) / self.warmup_steps, 1.0)
        return base * (1.0 + (self.factor - 1.0) * part)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, for saving."""
        base = self.base
        if isinstance(base, LearningRateSchedule):
            base = keras.saving.serialize_keras_object(base)
        return {"learning_rate": base, "factor": self.factor, "warmup_steps": self.warmup_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledSchedule:
        """Return the reverse of `get_config`."""
        base = config["learning_rate"]
        base = keras.saving.deserialize_keras_object(base) if isinstance(base, dict) else base
        return cls(base, config["factor"], config["warmup_steps"])
