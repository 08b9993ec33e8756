"""Writes that a step has collected for a variable before the optimizer writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ...compat.variables import stateless_scope
from ...distribute.replicas import local_copy
from ...distribute.step_context import current_step


class EarlierWrites:
    """Takes what the current `keras.StatelessScope` holds for `variables`, to be written before the update.

    A layer may assign a trainable variable while it computes (spectral normalization does). In a step that write is
    collected; after the update it would undo the update, so it is made first.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        scope = stateless_scope()
        self._writes: list[tuple[keras.Variable, Any]] = []
        if scope is None:
            return
        for variable in variables:
            value = scope.state_mapping.get(id(variable))
            if value is not None and isinstance(variable, keras.Variable):
                self._writes.append((variable, value))
        step = current_step()
        if step is not None and step.writes is scope:
            step.writes.forget([variable for variable, _ in self._writes])
        for variable, _ in self._writes:
            scope.state_mapping.pop(id(variable), None)

    def flush(self) -> None:
        """Makes the writes. Context: replica, outside of the scope."""
        for variable, value in self._writes:
            local_copy(variable).assign(value)
