"""Calls of a user's input between its batches, with the generators that they draw from: a resume calls them again alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...callbacks.backup.generators import GLOBAL_GENERATORS, found_generators, set_from_text, text_of


class RecordedCalls:
    """Makes calls, and keeps how NumPy's, Python's and the input's own generators were before each that has drawn from them.

    Such calls begin a pass or end an epoch, and draw the order of the next one, for instance.

    Args:
        given: the input.
    """

    def __init__(self, given: Any) -> None:
        self._generators = {**found_generators({"its": given}), **GLOBAL_GENERATORS}
        self._before: list[dict[str, str]] = []

    def __len__(self) -> int:
        return len(self._before)

    def call(self, function: Callable[[], Any]) -> Any:
        """What `function` returns."""
        before = {name: text_of(generator) for name, generator in self._generators.items()}
        result = function()
        drawn = {name: text for name, text in before.items() if text_of(self._generators[name]) != text}
        self._before.append(drawn)
        return result

    def repeat(self, number: int, function: Callable[[], Any], saved: list[dict[str, str]]) -> Any:
        """Makes call `number` of those in `saved` again, from the same states."""
        for name, text in (saved[number] if number < len(saved) else {}).items():
            if name in self._generators:
                set_from_text(self._generators[name], text)
        return self.call(function)

    def forget(self) -> None:
        """Begins anew."""
        self._before = []

    def state(self) -> str:
        """All calls, for `saved_calls`."""
        return json.dumps(self._before)


def saved_calls(state: dict[str, Any]) -> list[dict[str, str]] | None:
    """The calls in the position of a source; None where the first versions saved it."""
    return json.loads(state["calls"]) if "calls" in state else None
