"""`ForCallbacks`: a model's methods for callbacks and diagnoses. A part of `Trainer`."""

from __future__ import annotations

from typing import Any

from .. import mixed_precision
from ..mixed_precision.skipped_steps import step_logs
from ..optimizers.held_optimizers import optimizers_of
from .run.batch_statistics import check_renewal, renew_batch_statistics
from .run.checks.overflow import explanation


class ForCallbacks:
    """The mixin. Context of its methods: host."""

    def _explain_batch(self: Any, batch: Any) -> tuple[str, list[dict[str, Any]]]:
        """A sentence that names non-finite values in a step on `batch`, and the batch's statistics."""
        statistics = mixed_precision.batch_statistics(batch)
        return explanation(self, batch), statistics

    def _optimizer_logs(self: Any) -> dict[str, Any]:
        """The optimizers' additions to the logs: the loss scale and the skipped steps, where there is one."""
        return step_logs(optimizers_of(self))

    def _check_renewal(self: Any, asked_by: str) -> None:
        """Rejects a fit in which `_renew_batch_statistics` is impossible."""
        check_renewal(self, asked_by)

    def _renew_batch_statistics(self: Any) -> None:
        """Computes the statistics of `BatchNormalization` layers anew, in one more pass over the training data."""
        renew_batch_statistics(self)
