"""`train_on_batch`, `test_on_batch` and `predict_on_batch`: one step on one global batch."""

from __future__ import annotations

from typing import Any

import keras

from ...callbacks.trained_model import TrainedModel
from ...compat.keras_private.training import convert_to_np_if_not_ragged, logs_in_order, pythonify_logs
from ..inputs import Chunk, make_source
from ..inputs.batch import batch_spec, sample_count, unpack
from ..inputs.sources.arrays import ArraySource
from ..inputs.sources.make_source import kind_of
from ..partition.steps.explain import StepExplanation
from ..partition.steps.step_partition import ModelPartition, shared_by_replicas
from .checks.argument_errors import check_weights, explained
from .checks.overflow import check_progress
from .loops.compiled_calls import CompiledCall
from .runner import Runner


def on_batch(
    model: TrainedModel,
    runner: Runner,
    training: bool,
    x: Any,
    y: Any,
    sample_weight: Any,
    class_weight: Any,
    return_dict: bool,
) -> Any:
    """One step of training or evaluation, which gets `(x, y, sample_weight)`, as in Keras. Context: host."""
    chunk = _whole_batch(model, x, y, sample_weight, class_weight)
    step = "train_step" if training else "test_step"
    with runner.watching(model):
        spec = batch_spec(chunk.inputs)
        runner.build(model, spec, chunk.batch_size, training)
        check_weights(model, spec, {int(sample_count(chunk.inputs))}, step)
        model.reset_metrics()
        function = model.make_train_function() if training else model.make_test_function()
        with explained(model, spec, chunk.batch_size, step):
            _, logs = function(CompiledCall([chunk]))
        if training:
            check_progress(model, chunk, 1)
    logs = pythonify_logs(logs)
    return logs if return_dict else logs_in_order(model, logs)


def explain_step(model: TrainedModel, runner: Runner, x: Any, y: Any, sample_weight: Any) -> StepExplanation:
    """The collectives of a training step on one global batch; no step runs. Context: host."""
    chunk = _whole_batch(model, x, y, sample_weight, None)
    with runner.watching(model):
        spec = batch_spec(chunk.inputs)
        runner.build(model, spec, chunk.batch_size, True)
        return explanation_for(model, spec, int(sample_count(chunk.inputs)))


def explanation_for(model: TrainedModel, spec: Any, samples: int | None) -> StepExplanation:
    """The collectives of a training step on a batch of `spec`; of 32 samples where their number is not known.

    Raises:
        ValueError: no replicas share a batch.
    """
    if not shared_by_replicas(model):
        raise ValueError(
            f"`explain_step` needs a strategy with several replicas that share a batch. Received: "
            f"{type(model.distribute_strategy).__name__} with {model.distribute_strategy.num_replicas_in_sync} replica. "
            "On one device, make the model in the scope of a MirroredStrategy after "
            "`unisono.distribute.simulate_devices(2)`."
        )
    with model._strategy_scope():
        return ModelPartition(model, "train_step", model.train_step).explained(spec, samples or 32)


def predict_on_batch(model: TrainedModel, runner: Runner, x: Any) -> Any:
    """The outputs for one global batch; the step gets `(x,)`, as in Keras. Context: host."""
    chunk = _whole_batch(model, x, None, None, None)
    chunk = Chunk(chunk.inputs[:1], 1, None, _same)
    with runner.watching(model):
        spec = batch_spec(chunk.inputs)
        runner.build_for_prediction(model, spec)
        with explained(model, spec, step="predict_step"):
            _, outputs = model.make_predict_function()(CompiledCall([chunk]))
    return keras.tree.map_structure(convert_to_np_if_not_ragged, outputs[0])


def _whole_batch(model: TrainedModel, x: Any, y: Any, sample_weight: Any, class_weight: Any) -> Chunk:
    kind = kind_of(x)
    if kind != "array":
        raise TypeError(
            f"`x` must be one batch of arrays, but it is a {kind}: give one of its batches, or call `fit`, `evaluate` or "
            "`predict`."
        )
    source = make_source(
        x,
        y,
        sample_weight,
        batch_size=2**31 - 1,
        class_weight=class_weight,
        strategy=model.distribute_strategy,
    )
    batch = source.whole() if isinstance(source, ArraySource) else None
    if batch is None:
        source.begin_epoch(0)
        chunk = source.take(1)
        if chunk is None:
            raise ValueError("The batch has no samples: give at least one.")
        batch = chunk.batch(0)
    source.close()
    return Chunk(unpack(batch), 1, None, _same)


def _same(inputs: Any, i: Any) -> Any:
    return inputs
