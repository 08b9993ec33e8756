"""The rule for the backend of steps, XLA or TensorFlow's plain graph, decided before the first step, without a clock."""

from typing import Any

from ....compat.keras_private.layers import computes_again, layers_of
from ....compat.tensorflow_graphs.graphs import operations_are_deterministic
from ....distribute.hardware.devices import is_gpu, why_xla_aborts
from ....distribute.sharding.sharded import level_of
from ....state.trained_model import TrainedModel
from ...inputs import Chunk, Source
from ...inputs.sources.feed import FedSource
from ...inputs.sources.readers import ITERATORS
from ..loops import predictions
from ..loops.compiled import GRAPH, XLA
from ..loops.step_function import StepFunction
from . import xla_loops

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
# Operations for which XLA draws other numbers than the plain graph, or that it does not support.
_RANDOM = (
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "Multinomial",
    "RngReadAndSkip",
    "StatelessRandomUniformV2",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormalV2",
    "StatelessMultinomial",
    "StatelessRandomGammaV2",
    "StatelessRandomGammaV3",
    "StatelessRandomBinomial",
    "StatelessRandomPoisson",
)
FIXED_SIZES = 400  # steps for which full batches get a trace with a fixed batch size
FEWEST_STEPS = 5000  # for which compiling pays on CPUs; see `benchmarks/xla_rule.py`


def open_sizes(model: TrainedModel, steps: int | None, fixed: int | None = None) -> str:
    """Return `Source.open_sizes` for a fit or a pass of `steps` steps (None: not known).

    With a fixed batch size a smaller last batch is a second trace, which in a short fit costs as much as all steps. An
    open one, as in Keras, costs a few microseconds more for each step. So a long fit uses a fixed size for full batches.

    A loop that predicts many batches in one call must know the batch size. XLA compiles for each size in any case. A step in
    parts that no strategy divides splits batches of known size.
    """
    if model.jit_compile or not model._runner.partitions:
        return "no"
    return "all" if steps is not None and steps < (fixed or FIXED_SIZES) else "last"


def choose_backend(function: StepFunction, source: Source, steps: int | None) -> None:
    """Set the backend of a fit or a pass, and how its batches are read, before its first step.

    It follows from the device, the model, the strategy and `steps`, the number in all of the fit (None: unknown; 0: each is
    a call of its own), so that a resumed run has the same. What the step contains is known once it has been traced: a step
    that XLA would change, or does not support, is traced again for the graph (`loop_choice.py`).
    """
    if function.predicts:  # in the graph
        source.open_sizes = open_sizes(function.model, source.steps_per_epoch, predictions.FEWEST_STEPS)
        return
    function.full_size = source.batch_size
    reason = _reason_before_tracing(function, source, steps)
    chosen = "on a GPU" if is_gpu(function.device()) else f"{FEWEST_STEPS} steps or more"
    function.use(
        GRAPH if reason else XLA, reason or (chosen if function.model._auto_jit else "`jit_compile=True`")
    )
    if function.model._auto_jit and is_gpu(function.device()):
        source.open_sizes = "no"
    elif function.model._auto_jit and function.backend == XLA:
        source.open_sizes = "last"
    else:
        source.open_sizes = open_sizes(function.model, steps if function.training else source.steps_per_epoch)


def _reason_before_tracing(function: StepFunction, source: Source, steps: int | None) -> str | None:
    """Return the reason for the plain graph that is known before the step is traced; None where XLA is to be used."""
    model, several = function.model, not function.alone
    if model.run_eagerly:
        return "`run_eagerly` is set"
    if not model._auto_jit:
        by_parts = "XLA compiles what each replica computes between the collectives" if several else None
        return by_parts if model.jit_compile else "`jit_compile=False`"
    if function.refusal is not None:
        return function.refusal
    if operations_are_deterministic():
        return "operations are deterministic"
    if function.hooks():
        return "a callback watches the step"
    if not all(getattr(layer, "supports_jit", True) for layer in layers_of(model)):
        return "a layer does not support XLA"
    if level_of(model.distribute_strategy) == "weights":
        return "XLA would all-gather all weights before it computes"
    if any(map(computes_again, layers_of(model))):
        return "XLA would undo the rematerialization of `keras.RematScope`"
    if model._runner.no_xla is not None:
        return model._runner.no_xla
    if several and not function.training:
        return "on several replicas XLA only compiles the computation of the gradients"
    if is_gpu(function.device()):
        return why_xla_aborts()
    if several:
        return "several replicas on CPUs"
    if steps is None:
        return "the number of steps is not known"
    if steps == 0:
        return "a callback runs after every step"
    if steps < FEWEST_STEPS:
        return f"fewer than {FEWEST_STEPS} steps"
    if isinstance(source, FedSource):
        return "XLA would compile for each call, because the inputs differ in shape"
    return None


def follows_rule(function: StepFunction, chunk: Chunk) -> bool:
    """Return whether the rule has XLA compile this layout, else choose the graph; a smaller last batch has no say."""
    decides = chunk.usual_batch_size is not None or chunk.batch_size == function.full_size
    if function.backend != XLA or function.model.jit_compile or not decides:
        return False
    if not function.alone and isinstance(chunk.inputs, ITERATORS):
        function.use(GRAPH, "on several replicas XLA could fail after a batch was drawn")
    elif not xla_loops.has_one_size(function, chunk):
        function.use(GRAPH, "the batches have no fixed size")
    return function.backend == XLA


def reason_in_step(function: StepFunction, graph: Any) -> str | None:
    """Return the reason for the plain graph in the operations of a traced loop; None where XLA is to be used."""
    names = xla_loops.operations(graph)
    if any(name in names for name in _EFFECTS):
        return "the step communicates with the host"
    if is_gpu(function.device()):
        return None
    if any(name in names for name in _RANDOM):
        return "the step draws random numbers"
    if xla_loops.slow_loop(names):
        return "XLA's loops are slow at convolutions on CPUs"
    return None
