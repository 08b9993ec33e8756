"""Steps that a loss scale skips: their number for the logs, and the error if all steps are skipped."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ..optimizers.loss_scale.loss_scale_optimizer import LossScaleOptimizer

MAX_SKIPPED_IN_A_ROW = 50
"""Halving 2**15 fifty times leaves 2**-35: no loss needs that, so something else is wrong."""


class LossScaleError(RuntimeError):
    """Every step is skipped: no loss scale makes the gradients finite."""


def step_logs(optimizer: Any) -> dict[str, float | int]:
    """Return the `step_values` as Python numbers, for the logs."""
    return {name: value.numpy().item() for name, value in step_values(optimizer).items()}


def step_values(optimizer: Any) -> dict[str, tf.Tensor]:
    """Return `loss_scale` and `skipped_steps`, scalars, of one optimizer, several (by name) or None; in a graph too."""
    found = _find_scaled(optimizer)
    logs: dict[str, tf.Tensor] = {}
    for each in found:
        prefix = f"{each.name}_" if len(found) > 1 else ""
        logs[f"{prefix}loss_scale"] = tf.convert_to_tensor(each.dynamic_scale)
        logs[f"{prefix}skipped_steps"] = tf.convert_to_tensor(each.skipped_steps)
    return logs


def check_progress(optimizer: Any, diagnose: Callable[[float], Any] | None = None) -> None:
    """Stop training that only skips steps.

    Args:
        optimizer: any optimizer, several, or None.
        diagnose: `diagnose(loss_scale)` is called for the error: it reports what is not finite on the last batch.

    Raises:
        LossScaleError: `MAX_SKIPPED_IN_A_ROW` consecutive steps were skipped, or the scale has fallen to its floor.

    Examples:
        >>> optimizer = unisono.mixed_precision.LossScaleOptimizer(unisono.optimizers.Adam())
        >>> unisono.mixed_precision.check_progress(optimizer)  # in a custom loop, once per epoch
    """
    for each in _find_scaled(optimizer):
        in_a_row, scale = int(each.skipped_in_a_row.numpy()), float(each.dynamic_scale.numpy())
        at_floor = in_a_row > 0 and scale <= each.min_scale and not each.rule.is_fixed
        if in_a_row < MAX_SKIPPED_IN_A_ROW and not at_floor:
            continue
        reason = f"its floor is {each.min_scale:g}" if at_floor else f"the limit is {MAX_SKIPPED_IN_A_ROW}"
        where = "Call unisono.mixed_precision.diagnose(model, batch) to see where they stop being finite"
        if diagnose is not None:
            where = str(diagnose(scale if each.rule.is_fixed else 2 * scale)).rstrip(".")
        raise LossScaleError(
            f"The last {in_a_row} steps were skipped because their gradients are not finite, and the loss scale of "
            f"optimizer {each.name!r} is {scale:g} ({reason}). {where}. Look for a "
            "learning rate that is too high, data out of range or a division by zero, or set dtype='float32' in that layer."
        )


def _find_scaled(optimizer: Any) -> list[LossScaleOptimizer]:
    return [each for each in keras.tree.flatten(optimizer) if isinstance(each, LossScaleOptimizer)]
