"""Which steps are partitioned: those with user code, on several replicas; one `TracedStep` for each layout of the batches.

What cannot be partitioned is computed on the first replica, with one warning that says why. So are eager steps, without.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.backup.generators import reached
from ...callbacks.trained_model import TrainedModel
from ...compat.layers import holds_own_code, layers_of
from ...compat.training import given_metrics
from ..inputs.rows import batch_spec
from ..step.global_metrics import metrics_of, variable_ids
from ..step.step_loss import overrides_compute_loss
from .errors import NotPartitioned
from .traced_step import TracedStep
from .whole_step import WholeStep

_log = logging.getLogger("unisono")


class StepPartition:
    """The steps of a model that have code of the user's, where there are several replicas.

    Args:
        model: the model.
        name: of the step: "train_step", "test_step" or "predict_step".
        step_fn: the step.
    """

    def __init__(self, model: TrainedModel, name: str, step_fn: Callable[[Any], Any]) -> None:
        self._model, self._name, self._step_fn = model, name, step_fn
        self._traced: dict[str, TracedStep | None] = {}
        self._needed: bool | None = None

    def of(self, batch: Any) -> TracedStep | WholeStep | None:
        """The step for a batch; None where the step has no code of the user's. Context: cross-replica."""
        if self._needed is None:
            self._needed = has_user_code(self._model, self._name) and _several_replicas(self._model)
        if not self._needed:
            return None
        return self._partitioned(batch_spec(batch)) or WholeStep(self._model, self._step_fn, self._name)

    def _partitioned(self, spec: Any) -> TracedStep | None:
        if self._model.run_eagerly:
            return None
        leaves = [leaf for leaf in tf.nest.flatten(spec) if leaf is not None]
        key = str(
            (tf.nest.map_structure(lambda leaf: leaf is None, spec), [_layout(leaf) for leaf in leaves])
        )
        if key not in self._traced:
            self._traced[key] = self._trace(spec)
        return self._traced[key]

    def _trace(self, spec: Any) -> TracedStep | None:
        try:
            return TracedStep(self._model, self._step_fn, spec, self._name)
        except NotPartitioned as error:
            self._warn(error)
        except Exception as error:  # of user code, which then shows it where it is run
            _log.info("The trace of the step ended in an error: %r", error)
            self._warn(f"its trace ended in {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return None

    def _warn(self, reason: Any) -> None:
        """Says once for each model and reason why its steps run on one replica."""
        said = vars(self._model).setdefault("_said_of_steps", set())
        if str(reason) not in said:
            warnings.warn(
                f"The `{self._name}` of {type(self._model).__name__} runs on one replica, with the whole batch, and the "
                f"other replicas wait: {reason}. The result is that of a single device.",
                stacklevel=2,
            )
        said.add(str(reason))


def has_user_code(model: TrainedModel, name: str) -> bool:
    """Whether a step runs code that is neither Keras' nor Unisono's, beside functions of targets and outputs."""
    if model._overrides_step(name) or any(map(holds_own_code, layers_of(model))):
        return True
    if name == "predict_step":
        return False
    own_logs = model._has_own_logs(name == "train_step")
    return own_logs or overrides_compute_loss(model) or losses_hold_state(model)


def losses_hold_state(model: TrainedModel) -> bool:
    """Whether losses or metrics of `compile` reach a variable that is neither of the model nor of a metric."""
    known = variable_ids(metrics_of(model)) | {id(v) for v in model.variables}
    roots = {"loss": getattr(model, "loss", None), "metrics": given_metrics(model)}
    return any(id(found) not in known for _, found in reached(roots, (keras.Variable,)))


def _several_replicas(model: TrainedModel) -> bool:
    """Whether replicas share a batch, and no pipeline does."""
    servers = tf.distribute.experimental.ParameterServerStrategy
    strategy = model.distribute_strategy
    several = strategy.num_replicas_in_sync > 1 and not isinstance(strategy, servers)
    return several and model._pipeline is None


def _layout(spec: Any) -> Any:
    return (spec.shape[1:], spec.dtype.name) if isinstance(spec, tf.TensorSpec) and spec.shape.rank else spec
