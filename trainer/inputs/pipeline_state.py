"""What a `tf.data` pipeline depends on beside its iterator: generators, variables and caches that outlive a pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ...callbacks.backup.generators import found_generators, set_from_text, text_of
from ...compat.graphs import operations_are_deterministic
from ...compat.pipelines import Transformation, is_deterministic, transformations

_CURE = "a resumed training cannot be exact; "


class PipelineState:
    """How a pipeline can be brought to a position, and the state from which it has to be drawn again.

    Args:
        dataset: `tf.data.Dataset` from which nothing has been drawn yet; None: nothing is known of it.

    Attributes:
        never_saved: whether the checkpoint of an iterator would lack something; whether there is one can also depend on the
            moment.
        draws_all: whether every pass must be drawn again to its end.
        draws_first: whether the first pass must: a cache holds what it gave.
        inexact: str or None; why a resumed training may get other batches.
        owned: generators and variables that go on as the pipeline is read, which may be ahead of the steps. A resume draws
            them again, and nothing else may restore them.
    """

    def __init__(self, dataset: Any) -> None:
        steps = [] if dataset is None else list(transformations(dataset))
        self._generators = found_generators(_python(steps))
        self._variables = list(
            {id(v): v for step in steps if step.keeps_state for v in step.variables}.values()
        )
        keeps_state = any(step.keeps_state for step in steps) or bool(self._generators)
        self.draws_first = any(step.caches for step in steps)
        self.draws_all = keeps_state or any(step.restarts_shuffles for step in steps)
        lacking = any(step.calls_python or step.forgets_order for step in steps)
        self.never_saved = keeps_state or self.draws_first or lacking
        self.inexact = None if dataset is None else _why_inexact(dataset, steps)
        self.owned = [*self._generators.values(), *self._variables]
        self._began = self._read()

    def _read(self) -> dict[str, Any]:
        began: dict[str, Any] = {f"began {name}": text_of(each) for name, each in self._generators.items()}
        return {
            **began,
            **{f"began variable {i}": np.array(v.numpy()) for i, v in enumerate(self._variables)},
        }

    def state(self) -> dict[str, Any]:
        """How the generators and variables were before the first element was drawn."""
        return self._began

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to there.

        Raises:
            ValueError: the pipeline has other generators or variables.
        """
        names = {name for name in state if name.startswith("began ")}
        if names != self._began.keys():
            names = {name.removeprefix("began ") for name in names ^ self._began.keys()}
            raise ValueError(
                f"x is a tf.data pipeline with other random generators than that of the first run "
                f"({', '.join(sorted(names))}); resume with that pipeline."
            )
        for name, each in self._generators.items():
            set_from_text(each, state[f"began {name}"])
        for i, variable in enumerate(self._variables):
            variable.assign(state[f"began variable {i}"])
        self._began = self._read()


def _python(steps: list[Transformation]) -> dict[str, Any]:
    return {f"function {i}.{j}": each for i, step in enumerate(steps) for j, each in enumerate(step.python)}


def _why_inexact(dataset: tf.data.Dataset, steps: list[Transformation]) -> str | None:
    """A sentence, for the start of a fit."""
    if not operations_are_deterministic():
        for step in steps:
            generators = found_generators(_python([step]))
            if step.in_parallel and (step.keeps_state or step.draws or generators):
                what = (
                    " and ".join(generators) if generators else "random operations, a generator or a variable"
                )
                return (
                    f"x is a tf.data pipeline in which {step.name.strip('_')} uses {what} in parallel, and in which order "
                    f"is another in every run: {_CURE}give num_parallel_calls=None, or draw with tf.random.stateless_* "
                    "functions from a seed in the data, or call tf.config.experimental.enable_op_determinism()."
                )
        if not is_deterministic(dataset):
            return (
                "x is a tf.data pipeline with options().deterministic=False, whose order is another in every run: "
                f"{_CURE}set it to True."
            )
    if any(step.unseeded for step in steps):
        return (
            f"x is a tf.data pipeline that draws random numbers from no seed, others in every process: {_CURE}call "
            "keras.utils.set_random_seed before it is made."
        )
    return None
