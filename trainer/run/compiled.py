"""What loops over steps are made of, and what they are compiled to: a function that is called with a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.graphs import graph_function
from ..inputs.source import Chunk

GRAPH, XLA = "graph", "xla"  # the ways of running steps


class GlobalSteps(Protocol):
    """What the loops over steps use of the `StepFunction` that they belong to; see there.

    Attributes:
        model: the model.
        alone: whether there is one replica.
        way: GRAPH or XLA.
        full_rows: rows of a full global batch; None if not known.
        shapes_vary: whether the last step that was traced has collectives whose shape depends on the batch.
        reached_steps: int32 variable; the steps of the last call that had been run before an error.
        recorder: a `StepRecorder`, or None.
    """

    model: TrainedModel
    alone: bool
    way: str
    full_rows: int | None
    shapes_vary: bool
    reached_steps: tf.Variable
    recorder: Any

    def global_step(
        self,
        batch: Any,
        rows: int | None,
        worker_rows: tf.Tensor | None = None,
        after: Sequence[Any] = (),
        compute: Any = None,
        in_xla: bool = False,
        hooks: bool = True,
        part: Callable[[int, Any, Any], Any] | None = None,
    ) -> dict[str, Any]:
        """Runs one step; returns the logs that metrics do not carry."""
        ...

    def call_hooks(self, batch: Any) -> None:
        """Calls what callbacks put before a step."""

    def goes_on(self, more: Any) -> Any:
        """Whether a loop that has `more` to do goes on after this step."""

    def begin(self, i: Any) -> None:
        """Notes that step `i` of the call begins."""

    def logs(self, own: dict[str, Any]) -> dict[str, Any]:
        """The logs after a step."""
        ...

    def empty_logs(
        self, step: Any, batch: Callable[[], Any], rows: int | None, **others: Any
    ) -> dict[str, Any]:
        """Zeros with the structure of a step's own logs."""
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
        """What runs chunks of this layout, and whether it was there already."""
        ...

    def device(self) -> str:
        """Where the model's variables are."""
        ...

    def reached(self) -> int | None:
        """After an error: the steps of the last call that were run before."""
        ...


def inputs_and_steps(chunk: Chunk) -> tuple[Any, tf.Tensor]:
    """The arguments of most functions: the inputs, and the number of steps as an int32 scalar tensor."""
    return chunk.inputs, tf.constant(chunk.steps, tf.int32)


def present_inputs_and_steps(chunk: Chunk) -> tuple[list[Any], tf.Tensor]:
    """The same with a list of the inputs that are there."""
    return present(chunk.inputs), tf.constant(chunk.steps, tf.int32)


class Compiled(NamedTuple):
    """What runs the steps of one layout of input.

    Attributes:
        function: returns (the steps that were run, the logs or outputs of the last).
        arguments: chunk -> the arguments of `function`.
    """

    function: Callable[..., Any]
    arguments: Callable[[Chunk], tuple[Any, Any]] = inputs_and_steps


def signed(body: Callable[..., Any], signature: Any, **options: Any) -> Compiled:
    """`body(inputs, steps)`, compiled for inputs of `signature`; None: for whatever comes.

    A part of a batch may be None (the targets of an output without a loss). The signature of a `tf.function` has no None,
    so the function is then called with the leaves that are there.
    """
    if signature is None:
        return Compiled(graph_function(body, reduce_retracing=True))
    if not has_absent(signature):
        return Compiled(graph_function(body, input_signature=_with_steps(signature), **options))

    function = graph_function(
        taking_present(body, signature), input_signature=_with_steps(present(signature)), **options
    )
    return Compiled(function, present_inputs_and_steps)


def taking_present(body: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """`body(inputs, *others)`, to be called with a list of the inputs that are there."""

    def on_present(leaves: list[Any], *others: Any) -> Any:
        rest = iter(leaves)
        whole = [None if leaf is None else next(rest) for leaf in tf.nest.flatten(signature)]
        return body(tf.nest.pack_sequence_as(signature, whole), *others)

    return on_present


def has_absent(signature: Any) -> bool:
    """Whether a leaf of the nest is None; a signature that is None itself has no leaves."""
    return signature is not None and any(leaf is None for leaf in tf.nest.flatten(signature))


def present(nest: Any) -> list[Any]:
    """The leaves of a nest that are there."""
    return [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]


def _with_steps(signature: Any) -> list[Any]:
    return [signature, tf.TensorSpec([], tf.int32)]
