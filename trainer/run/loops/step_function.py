"""Runs steps: several in one call of a compiled function, under any strategy; `loop_choice.py` chooses the loops."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.seed_generators import thread_state
from ....compat.tensorflow_graphs.graph_optimizer import optimize_briefly
from ....compat.tensorflow_graphs.graphs import effects, first_graph, graph_for, only_graph
from ....distribute.hardware.program_cache import PROGRAM_CACHE
from ....distribute.replicas import copies_of, runs_in_threads
from ....distribute.workers.peer_monitor import monitor_call
from ....optimizers.building import optimizers_of
from ....optimizers.stages.accumulation import CallsOnHost
from ....optimizers.stages.step_hooks import StepHook, step_hooks
from ....state.trained_model import TrainedModel
from ...inputs.input_checks import check_equal_samples, check_samples
from ...inputs.sources.source import Chunk
from ...partition.steps.step_partition import ModelPartition
from ...partition.steps.traced_step import TracedStep
from ...partition.steps.whole_step import WholeStep
from ...step.global_metrics import losses_count_samples
from ...step.replica_slices import ReplicaSlices
from ...step.train_step import Tracing, replica_function
from ...step.variable_placement import accumulates
from ..logs.last_logs import LastLogs, Shares, whole
from ..logs.step_recorder import StepRecorder
from ..outputs import check_outputs, outputs_of_replicas, write_outputs
from .compiled import GRAPH, XLA, Compiled
from .compiled_calls import CompiledCall, Reached, note_step
from .drawn_batches import batches_of, run_until_the_end

LARGE = 100  # copies of variables: saved inputs slow down an MLP's step by 4 %, but not the steps of larger models
_EACH_INPUT = 5e-6  # seconds for TensorFlow to pass one variable to a graph


class StepFunction:
    """Runs the steps of "train", "test" or "predict" on global batches, in loops in the graph. Owns the compiled functions.

    `step_fn(data)` returns logs or outputs, and is called in replica context. `LoopedSteps` chooses the loops.
    """

    def __init__(self, model: TrainedModel, phase: str, step_fn: Callable[[Any], Any]) -> None:
        self.model, self.phase, self._step_fn = model, phase, step_fn
        self.training, self.predicts = phase == "train", phase == "predict"
        self.alone = model.distribute_strategy.num_replicas_in_sync == 1  # one replica
        self.backend = GRAPH  # or XLA; see `xla_rule`
        self.reason = ""  # of the backend
        self.refusal: str | None = None  # why the traced step runs in the graph, where XLA was to compile it
        # Samples of a full batch: a last partial one is not worth compiling for.
        self.full_size: int | None = None
        self.fresh = False  # whether the last compiled call included compilation
        self.open_collectives: list[tf.TensorShape] = []  # of the steps traced so far; see `StepContext`
        self.usual_steps = 1  # the length of compiled calls, for the next epoch
        # The approximate overhead of a call, where it is large: each variable is an argument.
        self.call_seconds = 0.0
        self.recorder: StepRecorder | None = None  # keeps the logs of each step for callbacks that need them
        self.recorders: dict[Any, StepRecorder] = {}  # by what they record
        self._compiled: dict[Any, Any] = {}
        self._partition = ModelPartition(model, f"{phase}_step", step_fn)
        self.partitioned: bool | None = None  # None: not traced yet
        self.attention: set[Any] = set()  # of the steps traced so far; see `StepContext`
        self._device = ""
        self._is_large: bool | None = None
        self._last_logs = LastLogs()
        once = self.training and not model._overrides_step("train_step")
        self._calls = CallsOnHost(model.optimizer if once else None, once)
        self.reached = Reached()

    def __call__(self, call: CompiledCall) -> tuple[int, Any]:
        """Run a compiled call, whose errors name the step; return the steps that ran, and the last logs or all outputs."""
        done, results, self.fresh = 0, self.results(), False
        for chunk in call.chunks:
            (function, arguments, _), familiar = self.find_compiled(chunk)
            self.reached.steps.assign(0, read_value=False)
            with (
                monitor_call(familiar, getattr(chunk.inputs, "drawn", None)),
                note_step(self.reached, call.first + done),
                self._optimization(),
                self._programs(),
            ):
                given = arguments(chunk)
                run = graph_for(function, given) if chunk.signature is None else only_graph(function)
                ran, new = run(*given)
            ran = int(ran)
            done, results = done + ran, self.results(results, new) if ran else results
            if ran < chunk.steps or self.is_halted():
                break
        return done, results

    def results(self, before: Any = (), new: Any = ()) -> Any:
        """Return the results after more steps, which returned `new`: all outputs, or the last logs."""
        return [*before, *new] if self.predicts else dict(new)

    def _optimization(self) -> contextlib.AbstractContextManager[None]:
        """Return how to optimize a graph on its first run: for a large model only as long as it pays."""
        if self._is_large is None:
            variables = len(self.model.variables)
            state = sum(len(each.variables) for each in optimizers_of(self.model)) if self.training else 0
            replicas = 1 if self.alone else len(self.model.distribute_strategy.extended.worker_devices)
            self._is_large = variables * replicas >= LARGE
            if not self.model.run_eagerly:
                self.call_seconds = _EACH_INPUT * (variables + state) * replicas
        return optimize_briefly() if self._is_large else contextlib.nullcontext()

    def _programs(self) -> contextlib.AbstractContextManager[None]:
        """Return what lets XLA load, in a first call, what an earlier process compiled for weights of these shapes."""
        compiles = self.fresh and (self.backend == XLA or self.model.jit_compile)
        return PROGRAM_CACHE.reuse_for(self.model, self.phase) if compiles else contextlib.nullcontext()

    def device(self) -> str:
        """Return the device of the model's variables, on one replica; the first replica's where there are several."""
        if not self._device:  # a model creates the list of its variables on each access
            self._device = next((getattr(copies_of(v)[0], "device", "") for v in self.model.variables), "")
        return self._device

    def graph(self) -> Any:
        """Return the first graph, for drawing; None without one."""
        graphs = (first_graph(function) for function in self._functions())
        return next((graph for graph in graphs if graph is not None), None)

    def compilations(self) -> int:
        """Return the number of graphs so far; 0 where every step runs eagerly."""
        return sum(function.experimental_get_tracing_count() for function in self._functions())

    def _functions(self) -> list[Any]:
        return [function for compiled in self._compiled.values() for function in compiled.graphs]

    def use(self, backend: str, reason: str) -> None:
        """Run the next steps in the graph or under XLA. Drop what was compiled for the other backend."""
        if backend != self.backend:
            self._compiled.clear()
        self.backend, self.reason = backend, reason

    def refuse(self, reason: str) -> None:
        """Run this and all later steps in the graph, because of what the traced step contains."""
        self.refusal = reason
        self.use(GRAPH, reason)

    def hooks(self) -> list[StepHook]:
        """Return what callbacks have added to the step."""
        return step_hooks(self.model, self.phase)

    def compile_loop(self, chunk: Chunk) -> Compiled:
        """Compile the loop for chunks with the layout of `chunk`; may change the backend."""
        raise NotImplementedError

    def find_compiled(self, chunk: Chunk) -> tuple[Compiled, bool]:
        """Return the compiled function for chunks of this layout, and whether it existed already."""
        familiar = self._key(chunk) in self._compiled
        if not familiar:
            if runs_in_threads(self.model.distribute_strategy):
                thread_state()  # its variable, created in a trace, would cost another trace
            compiled = self.compile_loop(chunk)  # may change the backend
            self._compiled[self._key(chunk)] = compiled
            self.fresh = True
        return self._compiled[self._key(chunk)], familiar

    def _key(self, chunk: Chunk) -> tuple[Any, ...]:
        stacked = chunk.usual_batch_size if self.backend == XLA else None
        return chunk.reader, chunk.batch_size, chunk.open_ended, self.recorder, stacked

    def loop(
        self, step: Callable[..., Any], chunk: Chunk, in_xla: bool = False, like: Any = None
    ) -> Callable[..., Any]:
        """Return `run(inputs, steps, first=0)`, the loop over batches `first` to `steps - 1` of such chunks.

        `step` is `global_step`, or a function with its arguments. `in_xla`: XLA compiles the loop; its steps cannot report
        that they begin. `like`: nest of `tf.TensorSpec`, the outputs of a step that predicts.
        """
        reader, samples, eager = chunk.reader, chunk.batch_size, self.model.run_eagerly
        parts = None if in_xla or eager else chunk.part_reader
        layout = dataclasses.replace(chunk, inputs=None)  # the function outlives the data

        def run(inputs: Any, steps: Any, first: Any = 0) -> tuple[tf.Tensor, Any]:
            def body(i: tf.Tensor, kept: Any) -> Any:
                if not in_xla:
                    self.reached.begin(i)
                with effects() as drawn:
                    batch = reader(inputs, i)
                own = {} if parts is None else {"part": functools.partial(parts, inputs, i)}
                return i + 1, self.keep(kept, i, step(batch, samples, after=drawn, **own))

            if not (in_xla or eager):
                self._calls.begin()
            kept = [
                tf.TensorArray(spec.dtype, 0, dynamic_size=True, element_shape=spec.shape, infer_shape=False)
                for spec in (keras.tree.flatten(like) if self.predicts else ())
            ]
            if layout.open_ended:
                batches = batches_of(layout, self.model.distribute_strategy)
                read = functools.partial(reader, inputs)
                done, kept = run_until_the_end(self, step, batches, read, steps, kept)
            else:
                start = tf.convert_to_tensor(first), kept
                done, kept = tf.while_loop(lambda i, _: self.goes_on(i < steps), body, start)
            if not self.predicts:
                return done, self.logs(self._last_logs.take())
            return done, [keras.tree.pack_sequence_as(like, [array.concat() for array in kept])]

        return run

    def keep(self, kept: Any, i: tf.Tensor, results: Any) -> Any:
        """Keep the outputs of step `i` in arrays, or its logs on the device that XLA compiles for."""
        if self.predicts:
            return write_outputs(kept, i, results)
        self._last_logs.keep(results, self.device() if self.alone else None)
        return kept

    def global_step(
        self,
        batch: Any,
        samples: int | None,
        worker_samples: tf.Tensor | None = None,
        after: Sequence[Any] = (),
        compiles: bool = False,
        in_xla: bool = False,
        hooks: bool = True,
        part: Callable[[int, Any, Any], Any] | None = None,
    ) -> Any:
        """Run one step on a global batch; return the outputs, or the logs that are not metrics. Context: cross-replica.

        Args:
            batch: nest of tensors `(batch, ...)` and Nones.
            samples: of the global batch, where they are known.
            worker_samples: int32 `(workers,)`, where `batch` holds this worker's samples only.
            after: operations that must have ended before anything of the step begins.
            compiles: whether XLA compiles each replica's computations between collectives.
            in_xla: whether all of the step is compiled by XLA.
            hooks: whether the hooks of callbacks get the batch here.
            part: reads a replica's samples on its own device; see `ReplicaSlices`.
        """
        model, strategy = self.model, self.model.distribute_strategy
        inside = self.hooks()
        for hook in inside if hooks else ():
            hook.before_step(batch)
        custom = model._overrides_step(f"{self.phase}_step")
        if not (in_xla or custom):
            parts = max(strategy.num_replicas_in_sync, 1 if self.predicts else model._runner.parts(model))
            after = [*after, *check_samples(batch, parts, inputs_alone=self.predicts)]
        elif worker_samples is not None:
            after = [*after, *check_equal_samples(batch)]
        if not in_xla:
            after = [*after, *self.reached.note_sizes(batch)]
        own = None if in_xla else self._partition.of(batch, compiles)
        on_one, in_units = isinstance(own, WholeStep), custom
        self.partitioned = isinstance(own, TracedStep)
        if isinstance(own, TracedStep):
            self.attention |= own.attention
            after = [*after, *(own.check_samples(batch) if samples is None and part is None else ())]
            batch, in_units = own.read_part(batch), custom and not own.program.one_size
        slices = ReplicaSlices(
            strategy, batch, samples, worker_samples, part, in_units=in_units, whole=on_one
        )
        tracing = Tracing(self.training and accumulates(model.optimizer), in_xla, after)
        tracing.open_collectives, tracing.attention = self.open_collectives, self.attention
        # The first replica of each worker gathers the samples of all.
        if on_one and worker_samples is not None:
            self.open_collectives[:] = [tf.TensorShape([None])]
        tracing.calls = {} if in_xla else self._calls.next()
        step_fn = check_outputs(own or self._step_fn, strategy) if self.predicts else own or self._step_fn
        run = replica_function(strategy, step_fn, slices.of_this_replica, tracing)
        with effects() as made, losses_count_samples(model):
            logs: Any = strategy.run(run)
        if self.predicts:
            return outputs_of_replicas(logs, strategy)
        own = None if self.alone else own
        logs = self._partition.check_results(logs) if own is None else Shares.of(logs, own.sums, strategy)
        takers = [hook for hook in (*inside, self.recorder) if hook is not None and hook.takes_logs]
        if takers:
            logs = whole(logs)
            with tf.control_dependencies(made):
                for hook in takers:
                    hook.after_step(logs)
        return logs

    def logs(self, own: dict[str, Any] | Shares) -> dict[str, Any]:
        """Return the logs after the last step: custom ones, of all replicas, else the results of the metrics."""
        return whole(own) or self.model.get_metrics_result()

    def goes_on(self, more: Any) -> Any:
        """Return whether a loop that has `more` to do continues after this step; bool tensor."""
        return more if self.recorder is None else self.recorder.goes_on(more)

    def is_halted(self) -> bool:
        """Return whether the completed step is the last, regardless of remaining ones. Context: host."""
        return self.recorder is not None and self.recorder.is_halted()
