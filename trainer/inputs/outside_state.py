"""State outside an input on which its batches depend: random generators, variables, caches.

A resume restores it, or the input reports why it cannot be resumed exactly.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_graphs.graphs import operations_are_deterministic
from ...compat.tensorflow_private.pipelines import (
    Transformation,
    in_any_order,
    transformations,
    watch_python_calls,
)
from ...state import random_state
from ...state.random_state import (
    GLOBAL_GENERATORS,
    find_generators,
    mark_of,
    name_each,
    set_from_text,
    text_of,
)

_ADVICE = "a resumed run cannot be exact; "


def find_candidates(given: Any, named: Sequence[Any]) -> dict[str, Any]:
    """Return the generators from which an input may draw: global ones, those that it reaches, those that a backup names."""
    return {**GLOBAL_GENERATORS, **find_generators({"its": given}), **name_each(named)}


class RecordedCalls:
    """Makes calls that may draw the order of a pass, and saves the states of the generators that they draw from."""

    def __init__(self, given: Any, named: Sequence[Any] = ()) -> None:
        self._generators = find_candidates(given, named)
        self._before: list[dict[str, str]] = []

    def __len__(self) -> int:
        return len(self._before)

    def call(self, function: Callable[[], Any], saved: Sequence[dict[str, str]] = ()) -> Any:
        """Return the result of `function`, called from the states before this call in `saved`, where there are some."""
        for name, text in (saved[len(self)] if len(self) < len(saved) else {}).items():
            if name in self._generators:
                set_from_text(self._generators[name], text)
        before = {name: text_of(generator) for name, generator in self._generators.items()}
        result = function()
        drawn = {name: text for name, text in before.items() if text_of(self._generators[name]) != text}
        self._before.append(drawn)
        return result

    def find_drawn(self) -> list[Any]:
        """Return the generators from which the calls have drawn."""
        return [self._generators[name] for name in {name for call in self._before for name in call}]

    def state(self) -> str:
        """Return all calls, for `read_saved_calls`."""
        return json.dumps(self._before)


def read_saved_calls(state: dict[str, Any]) -> list[dict[str, str]]:
    """Return the calls in the position of a source."""
    return json.loads(state["calls"])


@contextlib.contextmanager
def notes_drawn_numbers(given: Any, named: Sequence[Any]) -> Iterator[list[str]]:
    """Yield a list that afterwards holds the generators, global, of `given` or `named`, from which the body has drawn."""
    found: list[str] = []
    held = find_candidates(given, named)
    before = _states(held)
    yield found
    found += [name for name, state in _states(held).items() if state != before.get(name)]


def explain_drawn_ahead(kind: str, drawn_from: list[str]) -> str | None:
    """Return why an input of this kind cannot be resumed exactly; None where its batches draw from no generator."""
    if not drawn_from:
        return None
    article = "an" if kind[0] in "aeiou" else "a"
    return (
        f"x is {article} {kind} whose batches draw random numbers from {' and '.join(drawn_from)}, and batches are made "
        "ahead of the steps that use them: a resumed run cannot be exact; draw from a generator made for each batch, "
        "such as numpy.random.default_rng([seed, number])."
    )


def _states(held: Mapping[str, Any]) -> dict[str, str]:
    """Return the state of each generator as text, by its name in a sentence."""
    state = random_state.capture(held)
    named = {"numpy.random": state["numpy"], "random": state["python"], "keras.random": state.get("keras")}
    named["tf.random"] = [state.get("tensorflow"), state.get("tensorflow_seeds")]
    named.update(state.get("held", {}))
    return {name: json.dumps(part, default=lambda array: array.tolist()) for name, part in named.items()}


class WatchedCalls:
    """Calls of a pipeline's Python functions, made in threads of TensorFlow, and the generators that they draw from.

    Attributes:
        generators: those from which they may draw, by name.
        drawn: the states before the first draw, of those from which they have drawn.
        shared: those of them from which something else has drawn between two calls.
    """

    def __init__(self, steps: list[Transformation], named: Sequence[Any]) -> None:
        python = {
            f"function {i}.{j}": each for i, step in enumerate(steps) for j, each in enumerate(step.python)
        }
        self.generators = find_candidates(python, named)
        self.drawn: dict[str, str] = {}
        self.shared: set[str] = set()
        self._last: dict[str, bytes] = {}
        self._blamed: dict[str, set[str]] = {}  # the functions that ran whenever a generator moved
        self._running: list[tuple[str, set[str]]] = []  # each with those that have run at the same time
        self._parallel = {
            token: step.name.strip("_") for step in steps if step.in_parallel for token in step.tokens
        }
        watch_python_calls(tuple(token for step in steps for token in step.tokens), self)

    def note_call(self, token: str, call: Callable[[], Any]) -> Any:
        """Return the result of `call`; note which generators it has moved."""
        before = {name: mark_of(each) for name, each in self.generators.items()}
        if not self._running:
            self.shared |= {name for name, last in self._last.items() if last != before[name]}
        own = token, {token, *(other for other, _ in self._running)}
        for _, overlapping in self._running:
            overlapping.add(token)
        self._running.append(own)
        try:
            return call()
        finally:
            self._running.remove(own)
            for name, mark in before.items():
                if (now := mark_of(self.generators[name])) != mark:
                    self.drawn.setdefault(name, text_of(self.generators[name], mark))
                    self._blamed[name] = self._blamed.get(name, own[1]) & own[1]
                if name in self.drawn:
                    self._last[name] = now

    def explain(self) -> str | None:
        """Return why a resume would be inexact, as far as the calls have shown it."""
        for name, blamed in self._blamed.items():
            if (
                tokens := self._parallel.keys() & (blamed or self._parallel)
            ) and not operations_are_deterministic():
                return _IN_PARALLEL.format(self._parallel[min(tokens)], name)
        if not self.shared:
            return None
        return (
            f"x and something else draw from the same random numbers ({min(self.shared)}), in an order that depends on how "
            f"far the input is read ahead: {_ADVICE}use a separate generator for each."
        )


_IN_PARALLEL = (
    "x is a tf.data pipeline in which {} uses {} in parallel, in an order that differs in every run: "
    f"{_ADVICE}pass num_parallel_calls=None, or draw with tf.random.stateless_* functions from a seed in the data, or call "
    "tf.config.experimental.enable_op_determinism()."
)


class PipelineState:
    """How a pipeline can be moved to a position, and the state from which it must be drawn again.

    Args:
        dataset: nothing has been drawn from it yet.
        named: generators from which it may draw, though it does not lead to them.

    Attributes:
        never_saved: whether the checkpoint of an iterator would be incomplete; whether there is one can also depend on the
            moment.
        draws_first: whether the first pass must be drawn again to its end: a cache holds its elements.
    """

    def __init__(self, dataset: tf.data.Dataset, named: Sequence[Any] = ()) -> None:
        self._dataset, self._named = dataset, named
        self._steps = steps = list(transformations(dataset))
        self._calls: WatchedCalls | None = None
        variables = {id(v): v for step in steps if step.keeps_state for v in step.variables}
        self._variables = list(variables.values())
        keeps_state = any(step.keeps_state for step in steps)
        self.draws_first = any(step.caches for step in steps)
        self._draws_all = keeps_state or any(step.restarts_shuffles for step in steps)
        lacking = any(step.calls_python or step.forgets_order for step in steps)
        self.never_saved = keeps_state or self.draws_first or lacking
        self._began = self._read()

    def watch(self) -> None:
        """Watch the calls of Python from now on, before the first element is drawn."""
        if any(step.calls_python for step in self._steps):
            self._calls = WatchedCalls(self._steps, self._named)

    @property
    def _drawn(self) -> dict[str, str]:
        return self._calls.drawn if self._calls else {}

    @property
    def draws_all(self) -> bool:
        """Whether every pass must be drawn again to its end."""
        return self._draws_all or bool(self._drawn)

    @property
    def owned(self) -> list[Any]:
        """Generators and variables that advance as the pipeline is read, maybe ahead of the steps.

        A resume draws from them again, and nothing else may restore them.
        """
        return [*(self._calls.generators[name] for name in self._drawn if self._calls), *self._variables]

    @property
    def inexact(self) -> str | None:
        """Why a resumed run may get other batches, as far as it is known."""
        return _why_inexact(self._dataset, self._steps) or (self._calls.explain() if self._calls else None)

    def _read(self) -> dict[str, Any]:
        return {f"began variable {i}": np.array(v.numpy()) for i, v in enumerate(self._variables)}

    def state(self) -> dict[str, Any]:
        """Return the state of the generators and variables before the first element was drawn."""
        return {**self._began, **{f"began {name}": text for name, text in self._drawn.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore that state; reject that of a pipeline with other generators or variables."""
        names, known = (
            {name for name in state if name.startswith("began ")},
            self._calls.generators if self._calls else {},
        )
        wrong = (names ^ self._began.keys()) - {f"began {name}" for name in known}
        if wrong:
            wrong = {name.removeprefix("began ") for name in wrong}
            raise ValueError(
                "x is a tf.data pipeline whose random generators differ from those of the first run "
                f"({', '.join(sorted(wrong))}); resume with that pipeline."
            )
        for name in names - self._began.keys():
            set_from_text(known[name.removeprefix("began ")], state[name])
            self._draws_all = True  # which shows again from which of them it draws
        for i, variable in enumerate(self._variables):
            variable.assign(state[f"began variable {i}"])
        self._began = self._read()


def draws_numbers(dataset: tf.data.Dataset) -> bool:
    """Return whether functions of a pipeline draw random numbers, or may do so in Python."""
    return any(step.draws or step.keeps_state or step.calls_python for step in transformations(dataset))


def _why_inexact(dataset: tf.data.Dataset, steps: list[Transformation]) -> str | None:
    """Return why a resume would be inexact, as a sentence for the start of a fit."""
    if not operations_are_deterministic():
        for step in steps:
            if step.in_parallel and (step.keeps_state or step.draws):
                return _IN_PARALLEL.format(
                    step.name.strip("_"), "random operations, a generator or a variable"
                )
        if in_any_order(dataset):
            return (
                "x is a tf.data pipeline with deterministic=False, in its options or a transformation, whose order "
                f"differs in every run: {_ADVICE}remove it."
            )
    if any(step.unseeded for step in steps):
        return (
            f"x is a tf.data pipeline that draws random numbers without a seed, different in every process: {_ADVICE}call "
            "keras.utils.set_random_seed before you create it."
        )
    return None
