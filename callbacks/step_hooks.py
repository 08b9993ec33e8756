"""Functions that callbacks add to the compiled step; they are traced at the beginning of every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .trained_model import CompiledModel

Hook = Callable[[Any], None]


def add_step_hook(model: CompiledModel, phase: str, hook: Hook) -> None:
    """Calls `hook(batch)`, with the global batch and in cross-replica context, while steps are traced.

    The step of `phase`, "train" or "test", must be compiled again afterwards: `model.make_train_function(force=True)`. What
    the hook does must be possible in a graph, in a loop in the graph, and not under XLA alone.
    """
    model.__dict__.setdefault("_step_hooks", {}).setdefault(phase, []).append(hook)


def remove_step_hook(model: CompiledModel, phase: str, hook: Hook) -> None:
    """Removes the hook, if it is there."""
    hooks = model.__dict__.get("_step_hooks", {})
    if hook in hooks.get(phase, []):
        hooks[phase].remove(hook)
    if not any(hooks.values()):
        model.__dict__.pop("_step_hooks", None)
