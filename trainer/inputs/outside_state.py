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
from ...compat.tensorflow_private.pipelines import Transformation, in_any_order, transformations
from ...state import random_state
from ...state.random_state import GLOBAL_GENERATORS, find_generators, set_from_text, text_of

_ADVICE = "a resumed run cannot be exact; "


class RecordedCalls:
    """Makes calls that may draw the order of a pass, and saves the states of the generators that they draw from."""

    def __init__(self, given: Any) -> None:
        self._generators = {**find_generators({"its": given}), **GLOBAL_GENERATORS}
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

    def state(self) -> str:
        """Return all calls, for `read_saved_calls`."""
        return json.dumps(self._before)


def read_saved_calls(state: dict[str, Any]) -> list[dict[str, str]]:
    """Return the calls in the position of a source."""
    return json.loads(state["calls"])


@contextlib.contextmanager
def notes_drawn_numbers(given: Any) -> Iterator[list[str]]:
    """Yield a list that afterwards holds the generators, global or of `given`, from which the body has drawn."""
    found: list[str] = []
    held = find_generators({"its": given})
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


class PipelineState:
    """How a pipeline can be moved to a position, and the state from which it must be drawn again.

    Args:
        dataset: nothing has been drawn from it yet.

    Attributes:
        never_saved: whether the checkpoint of an iterator would be incomplete; whether there is one can also depend on the
            moment.
        draws_all: whether every pass must be drawn again to its end.
        draws_first: whether the first pass must be: a cache holds its elements.
        inexact: str or None; why a resumed run may get other batches.
        owned: generators and variables that advance as the pipeline is read, maybe ahead of the steps. A resume draws from
            them again, and nothing else may restore them.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        steps = list(transformations(dataset))
        self._generators = find_generators(_python(steps))
        variables = {id(v): v for step in steps if step.keeps_state for v in step.variables}
        self._variables = list(variables.values())
        keeps_state = any(step.keeps_state for step in steps) or bool(self._generators)
        self.draws_first = any(step.caches for step in steps)
        self.draws_all = keeps_state or any(step.restarts_shuffles for step in steps)
        lacking = any(step.calls_python or step.forgets_order for step in steps)
        self.never_saved = keeps_state or self.draws_first or lacking
        self.inexact = _why_inexact(dataset, steps)
        self.owned = [*self._generators.values(), *self._variables]
        self._began = self._read()

    def _read(self) -> dict[str, Any]:
        generators = {f"began {name}": text_of(each) for name, each in self._generators.items()}
        variables = {f"began variable {i}": np.array(v.numpy()) for i, v in enumerate(self._variables)}
        return {**generators, **variables}

    def state(self) -> dict[str, Any]:
        """Return the state of the generators and variables before the first element was drawn."""
        return self._began

    def restore(self, state: dict[str, Any]) -> None:
        """Restore that state; reject that of a pipeline with other generators or variables."""
        names = {name for name in state if name.startswith("began ")}
        if names != self._began.keys():
            names = {name.removeprefix("began ") for name in names ^ self._began.keys()}
            raise ValueError(
                "x is a tf.data pipeline whose random generators differ from those of the first run "
                f"({', '.join(sorted(names))}); resume with that pipeline."
            )
        for name, each in self._generators.items():
            set_from_text(each, state[f"began {name}"])
        for i, variable in enumerate(self._variables):
            variable.assign(state[f"began variable {i}"])
        self._began = self._read()


def draws_numbers(dataset: tf.data.Dataset) -> bool:
    """Return whether functions of a pipeline, also those of Python, draw random numbers."""
    steps = list(transformations(dataset))
    return any(step.draws or step.keeps_state for step in steps) or bool(find_generators(_python(steps)))


def _python(steps: list[Transformation]) -> dict[str, Any]:
    return {f"function {i}.{j}": each for i, step in enumerate(steps) for j, each in enumerate(step.python)}


def _why_inexact(dataset: tf.data.Dataset, steps: list[Transformation]) -> str | None:
    """Return why a resume would be inexact, as a sentence for the start of a fit."""
    if not operations_are_deterministic():
        for step in steps:
            generators = find_generators(_python([step]))
            if step.in_parallel and (step.keeps_state or step.draws or generators):
                what = (
                    " and ".join(generators) if generators else "random operations, a generator or a variable"
                )
                return (
                    f"x is a tf.data pipeline in which {step.name.strip('_')} uses {what} in parallel, in an order that "
                    f"differs in every run: {_ADVICE}pass num_parallel_calls=None, or draw with tf.random.stateless_* "
                    "functions from a seed in the data, or call tf.config.experimental.enable_op_determinism()."
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
