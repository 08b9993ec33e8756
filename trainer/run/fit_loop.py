"""The host loop: epochs, compiled calls and callbacks, in order.

It only schedules: `FitState` has the position, `CallLength` sizes the calls, a source has data, a `StepFunction` steps.
"""

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterator
from typing import Any

import keras

from ...callbacks.call_schedule import steps_until_call
from ...compat.keras_private.training import epoch_to_begin_with, evaluates_after
from ...compat.patches import replace_functions
from ...compat.tensorflow_graphs.graphs import compute_initial_values
from ...distribute.arguments import show
from ...distribute.hardware.devices import wait_for_accelerators
from ...distribute.hardware.program_cache import PROGRAM_CACHE
from ...distribute.mesh import mesh_of
from ...distribute.workers.records import report_position
from ...state.trained_model import FitState, TrainedModel
from ..inputs import Chunk, Source
from ..inputs.input_checks import name_arguments
from ..step.variable_placement import place_with_model
from . import build
from .checks.argument_errors import check_labels, check_validation
from .evaluation import evaluate, forward_pass
from .fit_begin import begin_fit, say_interrupted
from .fit_inputs import FitArguments, draw_seed, sources
from .logs.step_logs import record_steps
from .loops.compiled_calls import CallLength, CompiledCall
from .loops.loop_choice import LoopedSteps
from .passes import Pass, TrainingPass
from .worker_settlement import Workers, check_same_begin, check_same_fit
from .xla.xla_rule import choose_backend


class Runner:
    """The host loop, which runs steps in this process, or in each worker's process, synchronously with the others.

    Subclasses run them in a pipeline or on workers of parameter servers. It has no state. `runner_of` chooses the class.
    What depends on how steps run asks it. Context of its methods: host.
    """

    in_process = True  # this process has the batches of the steps, and waits for each call
    partitions = True  # replicas share each batch, so a step is partitioned over several
    moves_variables = False  # to devices without a strategy, before the first step
    no_xla: str | None = None  # why XLA compiles no step
    place: str | None = None  # the devices of the steps, in words; None: those of the strategy
    rematerialization: str | None = "layers in a `keras.RematScope`"  # which computes activations again
    home = "outside any scope"  # where a model without a strategy was built, and how to get it into a distribution
    cure = "build it in `unisono.distribute.strategy_of(distribution).scope()`"
    all_of = ""  # in the note of an out-of-memory error, where it is not that of each device
    # What normalizes with a part of the batch in a BatchNormalization layer, and what changes that.
    normalizes: tuple[str, ...] = (
        "each replica's samples apart",
        "unisono.synchronize_batch_norm(model) normalizes them together",
    )

    def parts(self, model: TrainedModel) -> int:
        """Return into how many parts a batch is divided, each computed apart."""
        return mesh_of(model.distribute_strategy).shape[0]

    def watch(self, model: TrainedModel) -> contextlib.AbstractContextManager[None]:
        """Report the loss of a participating process by name, in the block."""
        return contextlib.nullcontext()

    def build(
        self, model: TrainedModel, spec: Any, samples: int | None = None, step: str = "train_step"
    ) -> None:
        """Create every variable that a step needs for batches of `spec`; `samples` of a global batch, where known."""
        predicts = step == "predict_step"
        unbuilt = not (predicts or build.is_built(model))
        replaced = replace_functions() if unbuilt else contextlib.nullcontext()
        with model._strategy_scope(), replaced, compute_initial_values():
            build.build_for(model, spec, step, samples)
        build.check_layouts(model)
        if not predicts:
            place_with_model(model)  # the model has the metrics of `compile` only now

    def step_of(self, model: TrainedModel, name: str) -> Callable[[Any], Any]:
        """Return the step "train_step", "test_step" or "predict_step" of a model: a function of a batch."""
        return getattr(model, name)

    def function(self, model: TrainedModel, phase: str) -> Any:
        """Return the function that runs the steps of "train", "test" or "predict"."""
        step = self.step_of(model, f"{phase}_step")
        return LoopedSteps(model, phase, step)

    def make_function(self, model: TrainedModel, phase: str) -> Any:
        """Call `make_train_function`, `make_test_function` or `make_predict_function`; return what it made.

        Raises:
            ValueError: a user's version made something else, which calls the step for one batch of one device.
        """
        name = f"make_{phase}_function"
        getattr(model, name)()
        function = getattr(model, f"{phase}_function")
        if inspect.isroutine(function) or hasattr(function, "get_concrete_function"):
            raise ValueError(
                f"`{name}` of {type(model).__name__} made its own `{phase}_function`, which cannot run here: override "
                f"`{phase}_step` instead, or call `super().{name}(force)` and keep what it makes. Made: {show(function)}"
            )
        return function

    def begin_steps(self, model: TrainedModel, state: FitState) -> None:
        """Prepare the steps that come next, if they are new: a callback may compile the model, or make them again."""
        if model.train_function is state.function:
            return
        if state.function is not None:
            self.build(model, state.source.spec, state.source.batch_size)
        state.function = self.make_function(model, "train")
        state.source.passes = state.epochs - state.first_epoch
        self.prepare(model, "train", state.source, state.callbacks)

    def prepare(self, model: TrainedModel, phase: str, source: Source, callbacks: list[Any]) -> None:
        """Choose between the plain graph and XLA, by the number of steps in all passes over a source."""
        function = getattr(model, f"{phase}_function")
        if phase != "predict":
            record_steps(model, callbacks, phase)
        records = function.recorder is not None
        each = any(steps_until_call(callback, 0, phase, records) == 1 for callback in callbacks)
        steps = source.steps_per_epoch * source.passes if source.steps_per_epoch else None
        choose_backend(function, source, 0 if each else steps)

    def calls(self, steps: Pass) -> contextlib.AbstractContextManager[Any]:
        """Yield the compiled calls of a pass, until the block is left."""
        return contextlib.nullcontext(Calls(steps))

    def run_steps(self, steps: Pass) -> Generator[tuple[int, Any], None, None]:
        """Yield (number of the last batch, results) of each compiled call; the caller calls the callbacks for its end."""
        with self.calls(steps) as calls:
            for call in calls:
                if call.chunks:
                    steps.begin(call)
                with steps.errors(call):
                    done, results = steps.function(call)
                calls.report(call, done)
                if done:
                    results = steps.end(call, done, results)
                    wait_for_accelerators()  # logs are ready before the last update is
                    calls.length.note_call(done)
                    yield calls.length.last_batch(done), results
                if calls.over():
                    return


def fit(model: TrainedModel, a: FitArguments, runner: Runner) -> keras.callbacks.History:
    """Train for `epochs` epochs, with steps that `runner` runs. Context: host."""
    PROGRAM_CACHE.release_flags()
    with runner.watch(model), contextlib.ExitStack() as at_exit:  # all of it runs, even after errors
        check_same_begin(model)
        source, validation = sources(model, a)
        at_exit.callback(source.close)
        if validation is not None:
            at_exit.callback(validation.close)
        # A callback may restore the state of an optimizer.
        if a.callbacks or not build.creates_variables_late(model):
            runner.build(model, source.spec, source.batch_size)
        if a.shuffle:
            draw_seed()  # so that the next fit has a different order
        check_labels(model, source, "train_step")
        if validation is not None:
            check_validation(model, validation.spec, validation.batch_size, source.spec)
            with name_arguments("validation_data"):
                check_labels(model, validation, "test_step")
        check_same_fit(model, source, validation, {"epochs": a.epochs, "initial_epoch": a.initial_epoch})
        callbacks, state = begin_fit(model, a, source, validation, at_exit)
        state.forward_pass = lambda: forward_pass(model, runner)
        at_exit.enter_context(report_position(lambda: f"epoch {state.epoch + 1}, step {state.step}"))
        at_exit.enter_context(say_interrupted(state))
        model.stop_training = False
        made = runner.make_function(model, "train")
        callbacks.on_train_begin()
        # A callback of Keras may set it in on_train_begin.
        state.epoch = epoch_to_begin_with(model) or state.epoch
        state.function = None if model.train_function is made else made
        runner.begin_steps(model, state)
        logs = None
        workers = Workers(model, "stop_training")
        while state.epoch < state.epochs and not workers.is_stopped():
            logs = _epoch(model, a, state, callbacks, validation, runner) or logs
        if isinstance(model.optimizer, keras.optimizers.Optimizer) and a.epochs > 0:
            with model._strategy_scope():
                model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs=logs)
    return model.history


def _epoch(
    model: TrainedModel,
    a: FitArguments,
    state: FitState,
    callbacks: keras.callbacks.CallbackList,
    validation: Source | None,
    runner: Runner,
) -> dict[str, Any]:
    """Run one epoch, from the step of `state` on."""
    epoch = state.epoch
    if state.step == 0 and not state.epoch_logs:  # else it is resumed
        model.reset_metrics()
        state.source.begin_epoch(epoch)
    callbacks.on_epoch_begin(epoch)
    if state.after_epoch_begin is not None:
        state.after_epoch_begin()
        state.after_epoch_begin = None
    logs, started = state.epoch_logs, state.step
    if not logs and model.stop_training:  # a resumed run may have stopped after its last step
        logs = state.step_logs
    elif not logs:
        replaced = True
        while replaced:  # by a callback, in the middle of the epoch
            runner.begin_steps(model, state)
            steps = TrainingPass(model, state, callbacks)
            with contextlib.closing(runner.run_steps(steps)) as calls:
                for batch, logs in calls:
                    steps.call_callbacks(batch, logs)
            logs, replaced = steps.epoch_logs(steps.logs), steps.replaced
        if state.steps_per_epoch is None and not model.stop_training:
            state.steps_per_epoch = state.step
        if state.step == started == 0 and epoch == state.first_epoch:
            raise ValueError("The input yielded no batch: pass a dataset or generator that has at least one.")
    if not logs:  # the source has warned that its data ran out
        model.stop_training = True
        return {}
    state.epoch_logs = dict(logs)
    if validation is not None and evaluates_after(model, epoch, a.validation_freq):
        state.times.lap("other")
        validation.passes = _validations(model, a, state)
        val_logs = evaluate(model, validation, a.verbose, callbacks, runner)
        state.times.lap("validation")
        logs = {**logs, **{f"val_{name}": value for name, value in val_logs.items()}}
    state.epoch_logs = {}
    callbacks.on_epoch_end(epoch, logs)
    state.times.lap("callbacks")
    state.epoch, state.step, state.step_logs = epoch + 1, 0, {}
    return logs


def _validations(model: TrainedModel, a: FitArguments, state: FitState) -> int:
    """Return the number of validations in all; an early stop may come, so none is counted after a hundred epochs."""
    epochs = range(state.first_epoch, min(state.epochs, state.first_epoch + 100))
    return sum(evaluates_after(model, epoch, a.validation_freq) for epoch in epochs)


class Calls:
    """The compiled calls of a pass; an error of the input is raised after the steps on the batches before it."""

    def __init__(self, steps: Pass) -> None:
        self._pass, self._workers = steps, Workers(steps.model, steps.stop)
        self._function = steps.function
        self._ended = False
        hooks = steps.callbacks.callbacks
        self.length = CallLength(steps.fixed_steps, hooks, steps.phase, steps.step, steps.function)

    def __iter__(self) -> Iterator[CompiledCall]:
        failure: Exception | None = None
        source, workers = self._pass.source, self._workers
        while failure is None:
            wanted = workers.settle(self.length.next(), source)
            chunks, chunk = list[Chunk](), None
            while wanted > 0:
                try:
                    chunk = source.take(wanted)
                except Exception as error:
                    failure, chunk = error, None
                if chunk is None:
                    break
                chunks.append(chunk)
                wanted -= chunk.steps
                if chunk.open_ended:
                    break
            call = CompiledCall(chunks, self.length.step)
            try:
                workers.check_input(source)
            except ValueError as mismatch:
                if failure is not None:
                    raise failure from mismatch
                raise
            if chunks:
                yield call
            if chunk is None and failure is None:
                workers.check_pass(source)
                return
        raise failure

    def report(self, call: CompiledCall, done: int) -> None:
        """Tell the source where fewer steps ran than planned: the data has ended, or the loss was not finite."""
        missing, position = call.steps - done, self._pass.source.position
        if missing and self._function.is_halted():
            position.advance(-missing)
        elif missing:
            self._pass.source.note_drawn(call.chunks[-1].steps - missing)
        self._ended = missing > 0 and (done > 0 or self._pass.phase != "train" or position.is_over())

    def over(self) -> bool:
        """Return whether no call follows: the data has ended, or a callback ends the pass or has replaced its steps."""
        steps, model = self._pass, self._pass.model
        stopped = self._ended or (getattr(model, steps.stop) and not self._workers.several)
        steps.replaced = steps.phase == "train" and not stopped and model.train_function is not self._function
        if stopped:
            self._workers.check_pass(steps.source)
        return stopped or steps.replaced
