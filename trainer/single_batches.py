"""`SingleBatches`: one step on one global batch, for custom loops."""

from typing import Any, Never

import keras

from ..compat.keras_private.training import logs_in_order
from ..compat.upstream_places import convert_to_np_if_not_ragged, pythonify_logs
from ..distribute.arguments import check_names
from ..state.trained_model import TrainedModel
from . import fit_checks
from .compilation import runner_of
from .inputs import Chunk, GivenData, Reading, make_source
from .inputs.batch import batch_spec, sample_count, unpack
from .inputs.class_weights import class_weights
from .inputs.same_input import check_same_data
from .inputs.sources.arrays import ArraySource
from .partition.steps.explain import StepExplanation
from .partition.steps.step_partition import ModelPartition, shared_by_replicas
from .run.checks.argument_errors import ArgumentError, check_class_weights, check_weights, explain_errors
from .run.checks.mismatch import mismatch
from .run.checks.overflow import check_progress
from .run.loops.compiled_calls import CompiledCall
from .step.variable_placement import bring_along

_ALL = 2**31 - 1  # samples


class SingleBatches:
    """A part of `Trainer`: Keras' methods for one batch. Context: host, in or outside the strategy's scope."""

    def train_on_batch(
        self: Any,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
        **_unknown: Never,
    ) -> Any:
        """Run one training step on one global batch, as `keras.Model.train_on_batch`.

        Args:
            x: inputs of the batch: an array `(batch, ...)` or a nest of them.
            y: targets `(batch, ...)` or a nest of them.
            sample_weight: weights `(batch,)` of the losses of the samples, or `(batch, steps)` for sequences.
            class_weight: dict from class (int) to weight (float), for one output; other classes weigh 1.
            return_dict: bool; return a dict from the names of the loss and the metrics to their values.

        Returns:
            The loss and the metrics so far, since `reset_metrics` was called, in the form that `evaluate` returns.
        """
        check_names(self.train_on_batch, _unknown)
        self._ready("train_on_batch")
        logs = _on_batch(self, "train", GivenData(x, y, sample_weight, _ALL), class_weight)
        return logs if return_dict else logs_in_order(self, logs)

    def test_on_batch(
        self: Any,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        return_dict: bool = False,
        **_unknown: Never,
    ) -> Any:
        """Compute the loss and the metrics of one global batch, as `keras.Model.test_on_batch`.

        Args:
            x: inputs of the batch: an array `(batch, ...)` or a nest of them.
            y: targets `(batch, ...)` or a nest of them.
            sample_weight: weights `(batch,)`, or `(batch, steps)` for sequences.
            return_dict: bool; return a dict from the names of the loss and the metrics to their values.

        Returns:
            The loss and the metrics so far, since `reset_metrics` was called, in the form that `evaluate` returns.
        """
        check_names(self.test_on_batch, _unknown)
        self._ready("test_on_batch")
        logs = _on_batch(self, "test", GivenData(x, y, sample_weight, _ALL))
        return logs if return_dict else logs_in_order(self, logs)

    def explain_step(
        self: Any, x: Any, y: Any = None, sample_weight: Any = None, **_unknown: Never
    ) -> StepExplanation:
        """Explain the collectives of one training step, their sizes, and the lines of user code that cause them.

            print(model.explain_step(x[:64], y[:64]))

        The step is traced and not run.

        Args:
            x: inputs of one global batch: an array `(samples, ...)` or a nest of them.
            y: targets `(samples, ...)` or a nest of them.
            sample_weight: weights `(samples,)`.

        Returns:
            The explanation: `str()` gives a readable text; `collectives`, `exits` and `whole` are its parts.

        Raises:
            ValueError: the model's strategy has one replica, or an argument does not fit the model.
        """
        check_names(self.explain_step, _unknown)
        self._ready("explain_step")
        if not shared_by_replicas(self):
            raise ValueError(
                f"`explain_step` needs a strategy with several replicas that share a batch. Received: "
                f"{type(self.distribute_strategy).__name__} with {self.distribute_strategy.num_replicas_in_sync} replica. "
                "On one device, make the model in the scope of a MirroredStrategy after "
                "`unisono.distribute.simulate_devices(2)`."
            )
        chunk = _whole_batch(self, "explain_step", GivenData(x, y, sample_weight, _ALL))
        runner = runner_of(self)
        with runner.watch(self):
            spec = batch_spec(keras.utils.pack_x_y_sample_weight(*chunk.inputs))  # as `fit` passes it
            samples = int(sample_count(chunk.inputs))
            runner.build(self, spec, samples)
            with self._strategy_scope():
                partition = ModelPartition(self, "train_step", self.train_step)
                explanation = partition.explain(spec, samples)
            if explanation.whole and (sentence := mismatch(self, spec, samples, "train_step")) is not None:
                raise ArgumentError(sentence)
            return explanation

    def predict_on_batch(self: Any, x: Any, **_unknown: Never) -> Any:
        """Compute the outputs for one global batch, as `keras.Model.predict_on_batch`.

        Args:
            x: inputs of the batch: an array `(batch, ...)` or a nest of them.

        Returns:
            A NumPy array `(batch, ...)` or a nest of them.
        """
        check_names(self.predict_on_batch, _unknown)
        bring_along(self, "predict_on_batch")
        fit_checks.check_stateful(self, "predict_on_batch")
        runner = runner_of(self)
        whole = _whole_batch(self, "predict_on_batch", GivenData(x, batch_size=_ALL))
        inputs = whole.inputs[:1]  # the step gets `(x,)`, as in Keras
        with runner.watch(self):
            spec = batch_spec(inputs)
            runner.build(self, spec, int(sample_count(inputs)), "predict_step")
            with explain_errors(self, spec, step="predict_step"):
                _, outputs = runner.make_function(self, "predict")(
                    CompiledCall([Chunk(inputs, 1, None, _same)])
                )
        return keras.tree.map_structure(convert_to_np_if_not_ragged, outputs[0])


def _on_batch(model: Any, phase: str, data: GivenData, class_weight: Any = None) -> dict[str, Any]:
    """Run one step of "train" or "test", which gets `(x, y, sample_weight)`, as in Keras; return its logs."""
    chunk = _whole_batch(model, f"{phase}_on_batch", data, class_weight)
    runner, step = runner_of(model), f"{phase}_step"
    with runner.watch(model):
        spec = batch_spec(chunk.inputs)
        samples = int(sample_count(chunk.inputs))
        runner.build(model, spec, samples, step)
        check_class_weights(model, spec, class_weights(class_weight), step)
        check_weights(model, spec, {samples}, step)
        model.reset_metrics()
        function, call = runner.make_function(model, phase), CompiledCall([chunk])
        with explain_errors(model, spec, step=step):
            _, logs = function(call)
        if phase == "train":
            check_progress(model, call, 1)
    return pythonify_logs(logs)


def _whole_batch(model: TrainedModel, call: str, data: GivenData, class_weight: Any = None) -> Chunk:
    if not data.has_arrays:
        raise TypeError(
            f"`x` must be one batch of arrays, but it is a {data.kind}: pass one of its batches, or call `fit`, `evaluate` "
            "or `predict`."
        )
    source = make_source(data, Reading(model.distribute_strategy, call, class_weight=class_weight))
    batch = source.whole() if isinstance(source, ArraySource) else None
    if batch is None:
        source.begin_epoch(0)
        chunk = source.take(1)
        if chunk is None:
            raise ValueError("The batch has no samples: pass at least one.")
        batch = chunk.batch(0)
    check_same_data(source, model.distribute_strategy)
    source.close()
    return Chunk(unpack(batch), 1, None, _same)


def _same(inputs: Any, i: Any) -> Any:
    return inputs
