"""The interface of runners of a model's steps: in this process, in a pipeline, on the workers of parameter servers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import keras

from ...callbacks.fit_state import FitState
from ...callbacks.trained_model import TrainedModel
from ..inputs import Source


@dataclasses.dataclass(frozen=True)
class Passes:
    """The state for all passes of evaluation over one input.

    Attributes:
        plan: JSON values; how their steps run, see `XlaChoice`. In a fit it is a part of the fit's plan, with which a
            resumed run continues.
        left: the number of passes from this one on.
    """

    plan: dict[str, Any] = dataclasses.field(default_factory=dict)
    left: int = 1


class Runner(Protocol):
    """One class for each kind of process; `trainer/runner.py` chooses. Has no state. Context of its methods: host."""

    def watching(self, model: TrainedModel) -> contextlib.AbstractContextManager[None]:
        """A block in which the loss of a participating process is reported by name."""
        ...

    def build(self, model: TrainedModel, spec: Any, samples: int | None, training: bool = True) -> None:
        """Creates every variable that training needs: of the model, its metrics and its optimizers.

        Args:
            model: the model.
            spec: nest of `tf.TypeSpec` of one batch.
            samples: int or None; samples of a global batch, where known.
            training: bool; whether the model is going to be trained.
        """
        ...

    def build_for_prediction(self, model: TrainedModel, spec: Any) -> None:
        """Creates the variables of the model."""
        ...

    def train_function(self, model: TrainedModel) -> Any:
        """The function that runs training steps."""
        ...

    def test_function(self, model: TrainedModel) -> Any:
        """The function that runs steps of evaluation."""
        ...

    def predict_function(self, model: TrainedModel) -> Any:
        """The function that runs steps of prediction."""
        ...

    def begin_fit(self, model: TrainedModel, state: FitState) -> None:
        """A fit begins, or continues from a backup."""
        ...

    def train_steps(
        self, model: TrainedModel, state: FitState, callbacks: keras.callbacks.CallbackList
    ) -> dict[str, Any]:
        """The training steps of the epoch, from `state` on; returns the logs after the last."""
        ...

    def test_steps(
        self, model: TrainedModel, source: Source, callbacks: keras.callbacks.CallbackList, passes: Passes
    ) -> dict[str, Any]:
        """The steps of one pass of evaluation; returns the logs after the last."""
        ...

    def predict_steps(
        self,
        model: TrainedModel,
        source: Source,
        callbacks: keras.callbacks.CallbackList,
        take: Callable[[list[Any]], None],
    ) -> int:
        """One pass of prediction; returns 0 if there was no batch.

        Args:
            model: the model.
            source: of the samples.
            callbacks: of this `predict`.
            take: receives the outputs of batches, in order.
        """
        ...
