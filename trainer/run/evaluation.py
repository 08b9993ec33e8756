"""`evaluate`, `predict`, and forward passes of callbacks. `runner`: a `fit_loop.Runner`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from ...callbacks.output_paths import writes_to_stores
from ...compat.shared_change import share_attribute
from ...compat.upstream_places import (
    convert_to_np_if_not_ragged,
    potentially_ragged_concat,
    unpack_x_y_sample_weight,
)
from ...state.trained_model import TrainedModel
from ..fit_checks import with_global_batch
from ..inputs import GivenData, Reading, Source, make_source
from ..inputs.input_checks import name_arguments
from ..step.train_step import forward
from .callback_list import callback_list
from .checks.argument_errors import check_labels
from .loops.compiled_calls import CompiledCall
from .loops.loop_choice import LoopedSteps
from .passes import Pass

_PASS_BYTES = 64 * 2**20  # of arrays: larger ones are not copied for a single pass


@contextlib.contextmanager
def pass_source(
    model: TrainedModel, phase: str, per_replica_batch_size: int | None, **given: Any
) -> Iterator[Source]:
    """Yield the source of one "test" or "predict" pass over the `GivenData` of these fields; close it at the end."""
    with name_arguments(steps_per_epoch="steps"):
        data = with_global_batch(model, GivenData(**given), per_replica_batch_size)
        how = Reading(
            model.distribute_strategy,
            call="predict" if phase == "predict" else "evaluate",
            custom_step=model._overrides_step(f"{phase}_step"),
            resident_bytes=_PASS_BYTES,
        )
        source = make_source(data, how)
    with contextlib.closing(source):
        yield source


def evaluate(
    model: TrainedModel, source: Source, verbose: Any, callbacks: Any, runner: Any
) -> dict[str, Any]:
    """Return the logs of one pass over `source`. Context: host."""
    with (
        runner.watch(model),
        share_attribute(model, "_evaluating", lambda _: True),
        writes_to_stores(callbacks),
    ):
        runner.build(model, source.spec, source.batch_size, "test_step")
        check_labels(model, source, "test_step")
        callbacks = callback_list(model, callbacks, verbose=verbose, epochs=1, steps=source.steps_per_epoch)
        runner.make_function(model, "test")
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        source.begin_epoch(0)
        logs: dict[str, Any] = {}
        runner.prepare(model, "test", source, callbacks.callbacks)
        steps = Pass(model, source, callbacks, "test")
        with contextlib.closing(runner.run_steps(steps)) as calls:
            for batch, logs in calls:
                callbacks.on_test_batch_end(batch, logs)
        logs = steps.epoch_logs(logs)
        callbacks.on_test_end(logs)
    return logs


def predict(model: TrainedModel, source: Source, verbose: Any, callbacks: Any, runner: Any) -> Any:
    """Return the outputs for one pass over `source`, in order. Context: host."""
    with runner.watch(model):
        callbacks = callback_list(model, callbacks, verbose=verbose, epochs=1, steps=source.steps_per_epoch)
        runner.build(model, source.spec, source.batch_size, "predict_step")
        runner.make_function(model, "predict")
        model.stop_predicting = False
        callbacks.on_predict_begin()
        source.begin_epoch(0)
        outputs: list[Any] = []
        batch = -1
        runner.prepare(model, "predict", source, callbacks.callbacks)
        with contextlib.closing(runner.run_steps(Pass(model, source, callbacks, "predict"))) as calls:
            for batch, new in calls:
                outputs += new
                callbacks.on_predict_batch_end(batch, {"outputs": concatenate(new)})
        callbacks.on_predict_end()
    if batch < 0:
        raise ValueError("`predict()` got no batch from `x`: pass at least one sample.")
    return keras.tree.map_structure(convert_to_np_if_not_ragged, concatenate(outputs))


def concatenate(outputs: list[Any]) -> Any:
    """Return the concatenated outputs of several batches."""
    leaves = [potentially_ragged_concat(list(parts)) for parts in zip(*map(keras.tree.flatten, outputs))]
    return keras.tree.pack_sequence_as(outputs[0], leaves)


def why_no_pass(model: TrainedModel, source: Source) -> str | None:
    """Return why `forward_pass` is impossible in this fit, and what to do; None if it is possible."""
    if not model._runner.partitions:
        return "parameter servers and pipelines cannot run that pass: use a mirrored strategy"
    if not source.rewinds and source.position.given_steps is None:
        return "`x` is a generator, which cannot be read again: pass `steps_per_epoch`, or a keras.utils.PyDataset"
    return None


class _ForwardPass(Pass):
    """One batch in a call, without callbacks."""

    def __init__(self, model: TrainedModel, source: Source, function: LoopedSteps) -> None:
        super().__init__(model, source, keras.callbacks.CallbackList(), "test", function=function)
        self.fixed_steps = 1

    def errors(self, call: CompiledCall) -> contextlib.AbstractContextManager[None]:
        """Return the scope of the model's strategy, entered around the call."""
        return self.model._strategy_scope()


def forward_pass(model: TrainedModel, runner: Any) -> Iterator[int]:
    """See `FitState.forward_pass`. Context: host; on every worker."""
    state: Any = model.fit_state

    def step(data: Any) -> dict[str, Any]:
        forward(model, unpack_x_y_sample_weight(data)[0], training=True)
        return {}

    with model._strategy_scope():
        function = LoopedSteps(model, "test", step)
    state.source.begin_epoch(state.epoch)
    model.stop_evaluating = False
    for steps, _ in enumerate(runner.run_steps(_ForwardPass(model, state.source, function)), 1):
        yield steps
