"""Partitioned steps of models: one `TracedStep` for each layout of the batches.

Steps that cannot be partitioned run on the first replica, with one warning with the reason. So do eager steps, without it.
"""

import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.layers import computes_again, layers_of
from ....compat.keras_private.variables import sums_on_read
from ....compat.wrong_use import WrongUse
from ....distribute.mesh import mesh_of
from ....state.trained_model import TrainedModel, record_of
from ....state.variable_state import variables_of
from ...fit_checks import check_logs
from ...inputs.batch import batch_spec
from ...step.global_metrics import losses_count_samples, metrics_of
from ...step.variable_placement import accumulates
from ..labels import LOGS, SAMPLES
from ..program import NotPartitioned
from .explain import StepExplanation
from .step import Step
from .trace_errors import name_bug
from .traced_step import TracedStep, has_own_statistics
from .whole_step import WholeStep

_log = logging.getLogger("unisono")
STRICT = "UNISONO_STRICT"


class StepPartition:
    """A step, partitioned for each layout of the batches; `said` has earlier warnings, so that each appears once."""

    def __init__(self, step: Step, said: set[str]) -> None:
        self._step, self._said = step, said
        self._traced: dict[str, TracedStep | None] = {}
        self._reasons: dict[str, str] = {}  # not said yet

    def of(self, spec: Any, compiles: bool = False, batches: Sequence[Any] = ()) -> TracedStep | WholeStep:
        """Return the step for these batches of a spec, for XLA if it `compiles`. Context: cross-replica."""
        step = self._find(spec, compiles, self._trace) or self.whole()
        try:
            for batch in batches:
                step.check_samples(batch)
        except NotPartitioned as error:
            self._note(error)
            return self.whole()
        return step

    def on_one_device(self, spec: Any) -> TracedStep | None:
        """Return the traced step; None where it cannot be partitioned."""

        def trace(spec: Any, compiles: bool) -> TracedStep | None:
            with contextlib.suppress(NotPartitioned):
                return TracedStep(self._step, spec, compiles)

        return self._find(spec, False, trace)

    def _find(self, spec: Any, compiles: bool, trace: Callable[..., TracedStep | None]) -> TracedStep | None:
        # `synchronize_batch_norm` may be called between steps
        own = [*map(has_own_statistics, self._step.layers)]
        layouts = tf.nest.map_structure(lambda leaf: leaf is None or _layout(leaf), spec)
        key = str((layouts, compiles, own))
        if key not in self._traced:
            self._traced[key] = trace(spec, compiles)
        return self._traced[key]

    def explain(self, spec: Any, samples: int) -> StepExplanation:
        """Return the collectives of a step on a batch of this many samples. Context: cross-replica."""
        try:
            return TracedStep(self._step, spec).explain(samples)
        except NotPartitioned as error:
            return StepExplanation(self._step.strategy.num_replicas_in_sync, samples, whole=str(error))

    def whole(self) -> WholeStep:
        """Return the step that the first replica runs on the whole batch."""
        self._check_runs_on_one("eager steps do")
        return WholeStep(self._step, self._say, self._parts_of_sums)

    @functools.cached_property
    def _parts_of_sums(self) -> list[Any]:
        return [variable for variable in self._step.find_held() if sums_on_read(variable)]

    def _check_runs_on_one(self, reason: Any) -> None:
        if mesh_of(self._step.strategy).divides_weights:
            raise WrongUse(
                f"{self._step.name} would run on one replica, but weights are divided over a mesh: {reason}. Use "
                "`run_eagerly=False`, or `tf.function` around `strategy.run`, and operations that can be partitioned; or "
                "a mesh that divides only the batch."
            )

    def _trace(self, spec: Any, compiles: bool) -> TracedStep | None:
        try:
            return TracedStep(self._step, spec, compiles)
        except NotPartitioned as error:
            self._note(error)
        except Exception as error:  # the step still runs
            if mesh_of(self._step.strategy).divides_weights or _is_strict():
                raise
            _log.warning("Please report this error of Unisono.", exc_info=error)
            self._note(name_bug(error))
        return None

    def _note(self, reason: Any) -> None:
        """Warn once for each reason why the step runs on one replica; of an error of its code when it has run without it."""
        self._check_runs_on_one(reason)
        if str(reason) not in self._said:
            text = f"{self._step.name} runs on one replica, with the whole batch, and the other replicas wait: {reason}."
            self._reasons[str(reason)] = f"{text} {_RESULTS[getattr(reason, 'calls_python', None)]}."
        if getattr(reason, "__cause__", None) is None:
            self._say()

    def _say(self) -> None:
        for reason, text in list(self._reasons.items()):
            if _is_strict():
                raise WrongUse(f"{text} {STRICT}=1 makes this an error.")
            warnings.warn(text, stacklevel=2)
            self._said.add(reason)
            del self._reasons[reason]


_RESULTS = {  # by what is known of Python code in the graph
    False: "The result is the same as on a single device",
    True: "The result is the same as on a single device if the Python code that it runs writes no variables",
    None: "It was not traced to its end: the result is the same as on a single device if it runs no Python code "
    "that writes variables",
}


class ModelPartition:
    """A step of a model, where several replicas share its batches: "train_step", "test_step" or "predict_step"."""

    def __init__(self, model: TrainedModel, name: str, step_fn: Callable[[Any], Any]) -> None:
        self._model, self._name, self._step_fn = model, name, step_fn

    @functools.cached_property
    def _partition(self) -> StepPartition:
        model, training = self._model, self._name == "train_step"
        step = Step(
            self.results,
            model.distribute_strategy,
            f"The `{self._name}` of {type(model).__name__}",
            layers_of(model),
            [*model.variables, *(v for metric in metrics_of(model) for v in metric.variables)],
            SAMPLES if self._name == "predict_step" else LOGS,
            training and accumulates(model.optimizer),
            lambda: variables_of(model)["other"],
        )
        return StepPartition(step, record_of(model).said)

    def of(self, batch: Any, compiles: bool = False) -> TracedStep | WholeStep | None:
        """Return the step for a batch, for XLA if it `compiles`; None where no replicas share it. Context: cross-replica.

        On one device it is traced like this, too, where it computes activations again.
        """
        if not shared_by_replicas(self._model):
            return self._partition.on_one_device(batch_spec(batch)) if self._rematerializes else None
        if self._model.run_eagerly:
            return self._partition.whole()
        return self._partition.of(batch_spec(batch), compiles, [batch])

    @property
    def _rematerializes(self) -> bool:
        model = self._model
        in_training = self._name == "train_step" and model._runner.partitions and not model.run_eagerly
        return in_training and any(map(computes_again, layers_of(model)))

    def explain(self, spec: Any, samples: int) -> StepExplanation:
        """Return the collectives of a step on such a batch. Context: cross-replica, on several replicas."""
        return self._partition.explain(spec, samples)

    def results(self, batch: Any) -> Any:
        """Return the single-device step: returns the outputs for a batch, or the logs that are not metrics."""
        with losses_count_samples(self._model):
            return self.check_results(self._step_fn(batch))

    def check_results(self, results: Any) -> Any:
        """Return the relevant part of the step's results: the outputs, or the logs that are not metrics."""
        if self._name == "predict_step":
            return results
        if not self._model._has_own_logs(self._name == "train_step"):
            return {}
        logs = check_logs(results, getattr(self._step_fn, "__name__", self._name))
        return keras.tree.map_structure(tf.convert_to_tensor, logs)


def shared_by_replicas(model: TrainedModel) -> bool:
    """Return whether replicas share a batch."""
    return model._runner.partitions and model.distribute_strategy.num_replicas_in_sync > 1


def _is_strict() -> bool:
    return os.environ.get(STRICT) == "1"


def _layout(spec: Any) -> Any:
    return (spec.shape[1:], spec.dtype.name) if isinstance(spec, tf.TensorSpec) and spec.shape.rank else spec
