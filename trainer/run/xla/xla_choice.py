"""Chooses the faster backend of steps, the plain graph or XLA, by measurements on steps that run in any case."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from typing import Any

import tensorflow as tf

from ....callbacks.trained_model import TrainedModel
from ....compat.keras_private.layers import computes_again, layers_of
from ....compat.tensorflow_graphs.graphs import operations_are_deterministic
from ....distribute.hardware.devices import is_gpu
from ....distribute.sharding.sharded import level_of
from ....distribute.workers.agreement import spans_workers
from ...inputs import Chunk, Source
from ..loops import predict_loop
from ..loops.compiled import GRAPH, XLA
from ..loops.compiled_calls import CompiledCall
from ..loops.step_function import StepFunction
from . import xla_loops
from .remembered_choice import file_of, remember, remembered

# Operations that communicate with the host.
_EFFECTS = (
    "PyFunc",
    "PyFuncStateless",
    "EagerPyFunc",
    "Print",
    "PrintV2",
    "WriteScalarSummary",
    "WriteSummary",
    "WriteHistogramSummary",
)
# Operations for which XLA uses another random stream, or that it does not support: the choice must not change a number.
_OTHER_NUMBERS = (
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "Multinomial",
    "RngReadAndSkip",
    "StatelessTruncatedNormalV2",
    "StatelessMultinomial",
    "StatelessRandomGammaV2",
    "StatelessRandomGammaV3",
    "StatelessRandomBinomial",
    "StatelessRandomPoisson",
)
FEWEST_STEPS = 400  # for which steps are compiled for a fixed batch size
WORTH = 1.5  # the saving must be this many times the estimated cost of compiling: about twice the first compiled call
CALLS = 3  # measured compiled calls of each backend
_KEPT = 50  # remembered compiled calls
_LAYOUTS = 200  # of inputs, for each function


def open_sizes(model: TrainedModel, steps: int | None, predicting: bool = False) -> str:
    """`Source.open_sizes` for a pass or a fit of `steps` steps (None: not known).

    With a fixed batch size a smaller last batch is a second trace, which in a short fit costs as much as all steps. An
    open one, as in Keras, costs a few microseconds more for each step. So a long fit uses a fixed size for full
    batches.

    A loop that predicts many batches in one call must know the batch size. With `jit_compile=True` XLA compiles for each
    size in any case. The stages of a pipeline split batches of known size.
    """
    if model.jit_compile or model._pipeline is not None:
        return "no"
    fewest = predict_loop.FEWEST_STEPS if predicting else FEWEST_STEPS
    return "all" if steps is not None and steps < fewest else "last"


@dataclasses.dataclass
class Measured:
    """The measurements for one layout of the input, over all fits of a model."""

    backend: str | None = None  # GRAPH or XLA, once the faster one is known
    reason: str = ""
    compiling: float = 0.0  # seconds of the first compiled call
    steps: int = 0
    xla_compiles: bool = False  # whether XLA has compiled the steps
    knows_batch_size: bool = False  # evaluation has a trace for a fixed size, as XLA was worth a try
    # backend -> (steps, seconds) of the last compiled calls
    seconds: dict[str, collections.deque[tuple[int, float]]] = dataclasses.field(
        default_factory=lambda: {backend: collections.deque(maxlen=_KEPT) for backend in (GRAPH, XLA)}
    )

    def seconds_a_step(self, backend: str) -> float | None:
        """The best of the long compiled calls; None before there are enough of them."""
        known = self.seconds[backend]
        longest = max((steps for steps, _ in known), default=0)
        long = [seconds / steps for steps, seconds in known if 2 * steps >= longest]
        return min(long[-CALLS:]) if len(long) >= CALLS else None


class XlaChoice:
    """The choice in one fit, for its validation, or in one pass of `evaluate`. Measures each compiled call at its end.

    Where the remaining steps can pay for compiling, a fit switches to XLA at the end of a compiled call, measures, and
    stays or switches back. Backups store the backend of the next step. On GPUs XLA is used without measuring, as in
    Keras, after the first compiled call, whose graph shows the operations. Nothing is measured where `jit_compile` was
    given, where operations must be deterministic, or where a layer declares that it does not support XLA.

    The `plan` of the fit or the pass has JSON values with which a resumed run continues: "way" is the backend of the next
    step, "settled" whether it is final, "switches" a list of [epoch, step, backend] for each change in a fit, "open rows"
    the `Source.open_sizes`. `steps_ahead` is 0 where every step must be a separate compiled call, and None if unknown.
    """

    def __init__(
        self,
        model: TrainedModel,
        function: StepFunction,
        source: Source,
        plan: dict[str, Any],
        steps_ahead: int | None,
    ) -> None:
        self._model, self._function, self._source, self._plan = model, function, source, plan
        function.full_size = source.batch_size
        self._on_gpu = is_gpu(function.device())
        self._shapes: set[Any] = set()  # of the inputs of compiled calls
        layout = source.batch_size, source.usual_batch_size, source.held_samples
        self._measured: Measured = function.measured.setdefault(layout, Measured())
        while len(function.measured) > _LAYOUTS:  # the oldest is measured anew, if it occurs again
            del function.measured[next(iter(function.measured))]
        # A program that calls `fit` or `evaluate` repeatedly is assumed to go on for as long as it has run.
        self._ahead = 0 if steps_ahead == 0 else max(steps_ahead or 0, self._measured.steps)
        if "way" not in plan:
            backend, self._measured.reason = self._first_backend()
            begin = XLA if self._measured.xla_compiles else GRAPH  # where the previous fit was measuring
            plan.update(way=backend or begin, settled=backend is not None, switches=[])
            plan["open rows"] = self._open_sizes(backend)
        source.open_sizes = plan.setdefault("open rows", "no")
        self._function.backend = plan["way"]
        plan.setdefault("settled", True)
        plan.setdefault("switches", [])
        self._function.after_call = self.note if model._auto_jit else None

    def _open_sizes(self, backend: str | None) -> str:
        """The initial `Source.open_sizes`. Passes of evaluation have a second trace only for XLA, or if each is long."""
        if self._on_gpu:
            return "no"
        if self._function.training:
            return open_sizes(self._model, self._ahead)
        known = backend == XLA or self._measured.knows_batch_size
        return open_sizes(self._model, None if known else self._source.steps_per_epoch)

    def _first_backend(self) -> tuple[str | None, str]:
        """The backend that is known without measuring, with the reason; None where it must be measured."""
        model, several, training = self._model, not self._function.alone, self._function.training
        if not model._auto_jit:
            backend = XLA if model.jit_compile and not model.run_eagerly and not several else GRAPH
            return backend, "set by `jit_compile`"
        if model.run_eagerly:
            return GRAPH, "every step runs eagerly, set by `run_eagerly`"
        if operations_are_deterministic():
            return GRAPH, "operations are deterministic, so a measurement must not decide"
        if not all(getattr(layer, "supports_jit", True) for layer in layers_of(model)):
            return GRAPH, "a layer does not support XLA"
        if spans_workers(model.distribute_strategy) and not self._on_gpu:
            return GRAPH, "workers that measure separately may choose differently"
        if several and not training:
            return GRAPH, "on several replicas XLA only compiles the computation of the gradients"
        if level_of(model.distribute_strategy) == "weights":
            return GRAPH, "XLA would all-gather all weights before it computes"
        if any(map(computes_again, layers_of(model))):
            return GRAPH, "XLA would undo the rematerialization of `keras.RematScope`"
        if model._pipeline is not None:
            return GRAPH, "the stages of a pipeline are on several devices, and XLA compiles for one"
        if self._on_gpu:
            return self._measured.backend, self._measured.reason
        if self._ahead < FEWEST_STEPS:
            return GRAPH, "few steps"
        if self._measured.backend is None:
            self._measured.backend, self._measured.reason = remembered(self._file())
        return self._measured.backend, self._measured.reason

    def note(self, call: CompiledCall, steps: int, seconds: float) -> None:
        """A compiled call of `steps` steps has ended, its results included, after `seconds`."""
        measured, function = self._measured, self._function
        measured.steps += steps
        if self._plan["way"] == XLA and function.backend == GRAPH:  # XLA could not compile the step
            self._settle(GRAPH, "XLA cannot compile this step")
        elif self._on_gpu:
            if function.backend == GRAPH and not self._plan["settled"]:
                self._try(call)
                if function.backend == XLA:
                    self._settle(XLA, "the default on GPUs")
        elif function.fresh:
            measured.compiling = measured.compiling or seconds
        else:
            measured.seconds[function.backend].append((steps, seconds))
            if self._may_be_compiled(call.chunks[0]):
                leaves = tf.nest.flatten(call.chunks[0].inputs, expand_composites=True)
                self._shapes.add(tuple(str(getattr(leaf, "shape", None)) for leaf in leaves))
            if not self._plan["settled"]:
                self._decide(call)

    def _decide(self, call: CompiledCall) -> None:
        graph, xla = self._measured.seconds_a_step(GRAPH), self._measured.seconds_a_step(XLA)
        if self._function.backend == GRAPH:
            if graph is not None and graph * self._ahead * 0.7 > WORTH * (2 * self._measured.compiling + 0.5):
                self._try(call)
        elif xla is None:
            return
        elif graph is None:  # a resumed run has not measured the graph
            self._settle(XLA, "chosen before the backup was made")
        else:
            reason = f"{1e6 * graph:.0f} us a step in the plain graph, {1e6 * xla:.0f} us under XLA"
            self._settle(XLA if xla < 0.95 * graph else GRAPH, reason)
            remember(self._file(), self._measured.backend, self._measured.reason)

    def _try(self, call: CompiledCall) -> None:
        """Switches to XLA, if it can compile the steps; on one replica it compiles at once, by running no step."""
        chunk = call.chunks[0]
        if self._source.open_sizes == "all":  # later compiled calls give XLA a fixed batch size
            self._measured.knows_batch_size = True
            self._source.open_sizes = self._plan["open rows"] = "last"
            return
        if not self._may_be_compiled(chunk):
            return  # only the last partial batch: a compiled call of full ones will come
        reason = self._reason_for_graph(chunk)
        if reason is not None:
            self._settle(GRAPH, reason)
            return
        self._go(XLA)
        if self._function.alone:
            try:
                xla_loops.compile_only(self._function, chunk)
                self._measured.xla_compiles = True
            except (tf.errors.OpError, ValueError, TypeError, NotImplementedError):
                self._settle(GRAPH, "XLA cannot compile this step")

    def _may_be_compiled(self, chunk: Chunk) -> bool:
        """Whether it has more than a last partial batch."""
        return chunk.batch_size == self._function.full_size

    def _reason_for_graph(self, chunk: Chunk) -> str | None:
        """The reason not to try XLA on chunks like this; None where it is tried."""
        from_iterator = isinstance(chunk.inputs, tf.data.Iterator)
        if not xla_loops.has_one_size(chunk):
            return "the batches have no fixed size"
        if not from_iterator and len(self._shapes) > 1:
            return "XLA would compile for each call, because the inputs differ in shape"
        if from_iterator and not self._function.alone:
            return "on several replicas XLA could fail after a batch was drawn"
        compiled, _ = self._function.compiled_for(chunk)  # the steps have run before
        names = xla_loops.operations(compiled.graphs[0])
        if any(name in names for name in _EFFECTS):
            return "the step communicates with the host"
        if any(name in names for name in _OTHER_NUMBERS):
            return "XLA would draw other random numbers"
        if xla_loops.slow_loop(names):
            return "XLA's loops are slow at convolutions on CPUs"
        return None

    def _go(self, backend: str) -> None:
        state = self._model.fit_state
        self._function.backend = self._plan["way"] = backend
        self._plan["switches"].append([*([] if state is None else (state.epoch, state.step)), backend])

    def _settle(self, backend: str, reason: str) -> None:
        if backend != self._plan["way"]:
            self._go(backend)
        self._plan["settled"] = True
        self._measured.backend, self._measured.reason = backend, reason

    def _file(self) -> pathlib.Path | None:
        return file_of(self._model, self._function.training, self._source)
