"""Which steps are partitioned, and how: one `TracedStep` for each layout of the batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import holds_own_code, layers_of
from ...distribute.sharding.levels import level_of
from ...optimizers.held_optimizers import optimizers_of
from ...optimizers.stages.users_code import takes_gradients_itself
from ..inputs.rows import batch_spec
from ..inputs.source import Chunk, spec_of_batches
from ..step.own_states import losses_hold_state
from ..step.step_loss import overrides_compute_loss
from .errors import NotPartitioned
from .traced_step import TracedStep

_log = logging.getLogger("unisono")


class StepPartition:
    """Partitions the steps of a model that have code of the user's, where there are several replicas.

    Args:
        model: the model.
        training: whether its optimizer may run.
        step_fn: the step.
    """

    def __init__(self, model: TrainedModel, training: bool, step_fn: Callable[[Any], Any]) -> None:
        self._model, self._training, self._step_fn = model, training, step_fn
        self._traced: dict[str, TracedStep | None] = {}
        self._taken: dict[Any, bool] = {}
        self._needed: bool | None = None

    def takes(self, chunk: Chunk) -> bool:
        """Whether the steps of a chunk are partitioned. Context: host."""
        if self._needed is None:
            self._needed = self._is_needed()
        if self._needed and chunk.reader not in self._taken:
            self._taken[chunk.reader] = self._of_layout(spec_of_batches(chunk)) is not None
        return self._needed and self._taken[chunk.reader]

    def of(self, batch: Any) -> TracedStep | None:
        """The step for a batch; None where it is not partitioned. Context: the graph that is being made."""
        return self._of_layout(batch_spec(batch)) if self._needed else None

    def _is_needed(self) -> bool:
        model = self._model
        strategy = model.distribute_strategy
        if strategy.num_replicas_in_sync == 1 or model._pipeline is not None:
            return False
        if model.run_eagerly or model.jit_compile or level_of(strategy) is not None:
            return False
        if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
            return False
        if any(map(takes_gradients_itself, optimizers_of(model))):
            return False
        return (
            model._overrides_step("train_step" if self._training else "test_step")
            or any(map(holds_own_code, layers_of(model)))
            or model._has_own_logs(self._training)
            or overrides_compute_loss(model)
            or losses_hold_state(model)
        )

    def _of_layout(self, spec: Any) -> TracedStep | None:
        leaves = [leaf for leaf in tf.nest.flatten(spec) if leaf is not None]
        key = str(
            (tf.nest.map_structure(lambda leaf: leaf is None, spec), [_layout(leaf) for leaf in leaves])
        )
        if key not in self._traced:
            self._traced[key] = self._trace(spec)
        return self._traced[key]

    def _trace(self, spec: Any) -> TracedStep | None:
        try:
            return TracedStep(self._model, self._step_fn, spec, self._training)
        except NotPartitioned as reason:
            _log.info("The step is not partitioned: %s", reason)
        except Exception as error:  # of user code, which then shows it where it is traced as it is
            _log.info("The step is not partitioned, because its trace ended in an error: %r", error)
        return None


def _layout(spec: Any) -> Any:
    return (spec.shape[1:], spec.dtype.name) if isinstance(spec, tf.TensorSpec) and spec.shape.rank else spec
