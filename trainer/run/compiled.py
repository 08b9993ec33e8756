"""The parts of loops over steps, and their compiled form: a function that is called with a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.graphs import graph_function
from ..inputs.source import Chunk
from .carried_logs import CarriedLogs

GRAPH, XLA = "graph", "xla"  # the backends


class GlobalSteps(Protocol):
    """The interface of `StepFunction` for its loops over steps; see there.

    Attributes:
        model: the model.
        alone: whether there is one replica.
        way: GRAPH or XLA.
        full_rows: samples of a full global batch; None if not known.
        shapes_vary: whether the last traced step has collectives whose shape depends on the batch.
        reached_steps: int32 variable; the steps of the last call that ran before an error.
        recorder: a `StepRecorder`, or None.
        carried: the logs that loops carry.
    """

    model: TrainedModel
    alone: bool
    way: str
    full_rows: int | None
    shapes_vary: bool
    reached_steps: tf.Variable
    recorder: Any
    carried: CarriedLogs

    def global_step(
        self,
        batch: Any,
        rows: int | None,
        worker_rows: tf.Tensor | None = None,
        after: Sequence[Any] = (),
        compiles: bool = False,
        in_xla: bool = False,
        hooks: bool = True,
        part: Callable[[int, Any, Any], Any] | None = None,
    ) -> dict[str, Any]:
        """Runs one step; returns the logs that are not metrics."""
        ...

    def call_hooks(self, batch: Any) -> None:
        """Calls the hooks of callbacks before a step."""

    def start(self) -> Any:
        """The initial logs of a loop."""
        ...

    def goes_on(self, more: Any) -> Any:
        """Whether a loop that has `more` to do continues after this step."""

    def begin(self, i: Any) -> None:
        """Records that step `i` of the call begins."""

    def logs(self, own: dict[str, Any]) -> dict[str, Any]:
        """The logs after a step."""
        ...

    def counted_loop(
        self,
        step: Callable[..., Any],
        reader: Any,
        rows: int | None,
        begin: Callable[[Any], Any] | None = None,
        parts: Any = None,
    ) -> Callable[..., Any]:
        """The loop over a known number of batches."""
        ...

    def compiled_for(self, chunk: Chunk) -> tuple[Compiled, bool]:
        """The compiled function for chunks of this layout, and whether it existed already."""
        ...

    def device(self) -> str:
        """The device of the model's variables."""
        ...

    def reached(self) -> int | None:
        """After an error: the steps of the last call that ran before."""
        ...


def inputs_and_steps(chunk: Chunk) -> tuple[Any, tf.Tensor]:
    """The usual arguments of functions: the inputs, and the number of steps as an int32 scalar tensor."""
    return chunk.inputs, tf.constant(chunk.steps, tf.int32)


class Compiled(NamedTuple):
    """The compiled function for one layout of input.

    Attributes:
        function: returns (the number of steps that ran, the logs or outputs of the last).
        arguments: chunk -> the arguments of `function`.
    """

    function: Callable[..., Any]
    arguments: Callable[[Chunk], tuple[Any, ...]] = inputs_and_steps


def signed(body: Callable[..., Any], signature: Any, first: bool = False, **options: Any) -> Compiled:
    """`body(inputs, steps)`, compiled for inputs of `signature`; None: for any inputs.

    A part of a batch may be None (the targets of an output without a loss). The signature of a `tf.function` supports no
    None, so the function is then called with the other leaves.

    Args:
        body: the function to compile.
        signature: of the inputs.
        first: whether it is `body(inputs, steps, first)`, which begins with batch `first`, by default 0.
        options: of the `tf.function`.
    """
    numbers = (0,) if first else ()

    def arguments(chunk: Chunk) -> tuple[Any, ...]:
        inputs = present(chunk.inputs) if absent else chunk.inputs
        return inputs, *(tf.constant(number, tf.int32) for number in (chunk.steps, *numbers))

    absent = has_absent(signature)
    if signature is None:
        return Compiled(graph_function(body, reduce_retracing=True), arguments)
    if absent:
        body, signature = taking_present(body, signature), present(signature)
    scalars = [tf.TensorSpec([], tf.int32)] * (1 + len(numbers))
    return Compiled(graph_function(body, input_signature=[signature, *scalars], **options), arguments)


def taking_present(body: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """`body(inputs, *others)`, to be called with a list of the inputs that are not None."""

    def on_present(leaves: list[Any], *others: Any) -> Any:
        rest = iter(leaves)
        whole = [None if leaf is None else next(rest) for leaf in tf.nest.flatten(signature)]
        return body(tf.nest.pack_sequence_as(signature, whole), *others)

    return on_present


def has_absent(signature: Any) -> bool:
    """Whether a leaf of the nest is None; a signature that is None itself has no leaves."""
    return signature is not None and any(leaf is None for leaf in tf.nest.flatten(signature))


def present(nest: Any) -> list[Any]:
    """The leaves of a nest that are not None."""
    return [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]
