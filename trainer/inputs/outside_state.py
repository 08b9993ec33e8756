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
from ...state.random_state import (
    GLOBAL_GENERATORS,
    find_generators,
    find_global,
    mark_each,
    mark_of,
    set_from_text,
    text_of,
)

_ADVICE = "a resumed run cannot be exact; "
_IN_PARALLEL = (
    "x is a tf.data pipeline in which {} uses {} in parallel, in an order that differs in every run: "
    f"{_ADVICE}pass num_parallel_calls=None, or draw with tf.random.stateless_* functions from a seed in the data, or call "
    "tf.config.experimental.enable_op_determinism()."
)


class RecordedCalls:
    """Makes calls that may draw the order of a pass, and saves the states of the generators that they draw from.

    They may draw from global generators, from those that `given` reaches, and from those that a backup holds by name.
    """

    def __init__(self, given: Any, named: Mapping[str, Any]) -> None:
        self._generators = {**find_generators({"its": given}), **GLOBAL_GENERATORS, **named}
        self._before: list[dict[str, str]] = []

    def __len__(self) -> int:
        return len(self._before)

    def call(self, function: Callable[[], Any], saved: Sequence[dict[str, str]] = ()) -> Any:
        """Return the result of `function`, called from the states before this call in `saved`, where there are some."""
        for name, text in (saved[len(self)] if len(self) < len(saved) else {}).items():
            if name in self._generators:
                set_from_text(self._generators[name], text)
        before = mark_each(self._generators)
        result = function()
        drawn = {name: each for name, each in self._generators.items() if mark_of(each) != before[name]}
        self._before.append({name: text_of(each, before[name]) for name, each in drawn.items()})
        return result

    @contextlib.contextmanager
    def note_draws(self) -> Iterator[list[str]]:
        """Yield a list that afterwards names the generators from which the body has drawn."""
        found: list[str] = []
        before = mark_each({**self._generators, **find_global()})
        yield found
        now = mark_each({**self._generators, **find_global()})
        found += [name for name, mark in now.items() if before.get(name) != mark]

    def find_drawn(self) -> list[Any]:
        """Return the generators from which the calls have drawn."""
        return [self._generators[name] for name in {name for call in self._before for name in call}]

    def forget(self) -> None:
        """Forget the calls, which are then made again."""
        self._before = []

    def state(self) -> str:
        """Return all calls as JSON: for each, the states before it of the generators that it has moved."""
        return json.dumps(self._before)


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


class PipelineState:
    """How a pipeline can be moved to a position, and the state from which it must be drawn again.

    From which generators its Python functions draw, in threads of TensorFlow, is seen in each of their calls.

    Args:
        dataset: nothing has been drawn from it yet.

    Attributes:
        never_saved: whether the checkpoint of an iterator would be incomplete; whether there is one can also depend on the
            moment.
        draws_first: whether the first pass must be drawn again to its end: a cache holds its elements.
        draws_all: whether every pass must be.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._steps = steps = list(transformations(dataset))
        variables = {id(v): v for step in steps if step.keeps_state for v in step.variables}
        self._variables = {f"began variable {i}": v for i, v in enumerate(variables.values())}
        self.draws_first = any(step.caches for step in steps)
        keeps_state = any(step.keeps_state for step in steps)
        self.draws_all = keeps_state or any(step.restarts_shuffles for step in steps)
        lacking = any(step.tokens or step.forgets_order for step in steps)
        self.never_saved = keeps_state or self.draws_first or lacking
        self._inexact = _why_inexact(dataset, steps)
        self._generators: dict[str, Any] = {}  # from which its functions may draw
        self._last: dict[str, bytes] = {}  # the states of those that they have moved, after the last call
        self._shared: set[str] = set()  # of these: something else has moved them between two calls
        self._blamed: dict[str, set[str]] = {}  # the functions that ran whenever a generator moved
        self._running: list[tuple[str, set[str]]] = []  # each with those that have run at the same time
        self._began: dict[str, Any] = {name: np.array(v.numpy()) for name, v in self._variables.items()}

    def watch(self, named: Mapping[str, Any]) -> None:
        """Watch the calls of Python from now on, before the first element is drawn."""
        steps = enumerate(self._steps)
        python = {f"function {i}.{j}": each for i, step in steps for j, each in enumerate(step.python)}
        if any(step.tokens for step in self._steps):
            found = {**find_generators(python), **GLOBAL_GENERATORS, **named}
            self._generators = {f"began {name}": each for name, each in found.items()}
            watch_python_calls([token for step in self._steps for token in step.tokens], self)

    def note_call(self, token: str, call: Callable[[], Any]) -> Any:
        """Return the result of `call`; note which generators it has moved."""
        before = mark_each(self._generators)
        if not self._running:
            self._shared |= {name for name, last in self._last.items() if last != before[name]}
        own = token, {token, *(other for other, _ in self._running)}
        for _, overlapping in self._running:
            overlapping.add(token)
        self._running.append(own)
        try:
            return call()
        finally:
            self._running.remove(own)
            for name, now in mark_each(self._generators).items():
                if now != before[name]:
                    self._began.setdefault(name, text_of(self._generators[name], before[name]))
                    self._blamed[name] = self._blamed.get(name, own[1]) & own[1]
                    self.draws_all = True
                if name in self._began:
                    self._last[name] = now

    @property
    def own_state(self) -> list[Any]:
        """Generators and variables that advance as the pipeline is read, maybe ahead of the steps.

        A resume draws from them again, and nothing else may restore them.
        """
        return [each for name, each in {**self._generators, **self._variables}.items() if name in self._began]

    @property
    def inexact(self) -> str | None:
        """Why a resumed run may get other batches, as far as it is known."""
        in_parallel = [] if operations_are_deterministic() else [s for s in self._steps if s.in_parallel]
        for name, blamed in self._blamed.items():
            for step in in_parallel:
                if not blamed or blamed.intersection(step.tokens):
                    return _IN_PARALLEL.format(step.name.strip("_"), name.removeprefix("began "))
        if self._inexact or not self._shared:
            return self._inexact
        return (
            f"x and something else draw from the same random numbers ({min(self._shared).removeprefix('began ')}), in an "
            f"order that depends on how far the input is read ahead: {_ADVICE}use a separate generator for each."
        )

    def state(self) -> dict[str, Any]:
        """Return the state of the generators and variables before the first element was drawn."""
        return dict(self._began)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore that state; reject that of a pipeline with other generators or variables."""
        began = {name: each for name, each in state.items() if name.startswith("began ")}
        wrong = (began.keys() ^ self._variables.keys()) - self._generators.keys()
        if wrong:
            raise ValueError(
                "x is a tf.data pipeline whose random generators have changed since the first run "
                f"({', '.join(sorted(name.removeprefix('began ') for name in wrong))}); resume with that pipeline."
            )
        for name, saved in began.items():
            if name in self._variables:
                self._variables[name].assign(saved)
            else:
                set_from_text(self._generators[name], saved)
                self.draws_all = True
        self._began = began


def draws_numbers(dataset: tf.data.Dataset) -> bool:
    """Return whether functions of a pipeline draw random numbers, or may do so in Python."""
    return any(step.draws or step.keeps_state or step.tokens for step in transformations(dataset))


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
