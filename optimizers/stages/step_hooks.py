"""The one way into a step: what callbacks and loops compute inside it, on the devices."""

from typing import Any

from ...compat.side_table import SideTable
from .sparse_gradients import Pairs


class StepHook:
    """Operations that are added to each step; the methods are called in this order, while the step is traced.

    `StepFunction` calls `before_step` and, if the hook `takes_logs`, `after_step`; the stages of an optimizer call the
    others. What they add must be possible in a graph, in a loop in the graph, and not under XLA alone.
    """

    takes_logs = False

    def before_step(self, batch: Any) -> None:
        """Context: cross-replica, with the global batch."""

    def before_aggregation(self, pairs: Pairs) -> Any:
        """Get this replica's own gradients; return what `after_aggregation` gets. Context: replica."""

    def after_aggregation(self, pairs: Pairs, before: Any) -> None:
        """Get the sums. Context: replica."""

    def check_gradients(self, pairs: Pairs, finite: Any) -> Any:
        """Get the aggregated, unscaled gradients; return the finite check: where it is false, the update is skipped.

        Context: replica; in `norms_over_shards` where each replica has a shard of every gradient.
        """
        return finite

    def after_step(self, logs: Any) -> None:
        """Get the logs of all replicas. Context: cross-replica."""


_hooks: SideTable[list[tuple[str, StepHook]]] = SideTable(list)


def step_hooks(owner: Any, phase: str = "train") -> list[StepHook]:
    """Return the hooks of an optimizer, or of a model's steps of "train" or "test"."""
    return [hook for each, hook in _hooks.of(owner) if each == phase]


def add_step_hook(owner: Any, hook: StepHook, phase: str = "train") -> None:
    """Add a hook, which the next trace of the step calls: after `model.make_train_function(force=True)`, for example."""
    _hooks.of(owner).append((phase, hook))


def remove_step_hook(owner: Any, hook: StepHook) -> None:
    """Remove the hook, if it is there."""
    _hooks.of(owner)[:] = [pair for pair in _hooks.of(owner) if pair[1] is not hook]
