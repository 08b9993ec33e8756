"""Which operations a piece of code makes in a trace, with those of their gradients: known by identity, not by name."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..shared_change import share_attributes
from ..thread_context import tracing

_STANDS_FOR = "_unisono_stands_for"  # attribute of an operation


def stand_for(op: tf.Operation, what: str, number: int) -> None:
    """Note that an operation stands for number `number` of something that is not in its graph."""
    setattr(op, _STANDS_FOR, (what, number))


def stands_for(op: tf.Operation, what: str) -> int | None:
    """Return the number that `stand_for` noted; None for any other operation."""
    kind, number = getattr(op, _STANDS_FOR, ("", None))
    return number if kind == what else None


class MadeOperations:
    """The operations of the calls of some layers and their gradients, found by a scope for each call."""

    def __init__(self) -> None:
        self._operations: dict[int, tf.Operation] = {}
        self._scopes: set[str] = set()
        self._inside = False

    def __contains__(self, op: tf.Operation) -> bool:
        return id(op) in self._operations

    @contextlib.contextmanager
    def of_calls(self, layers: Sequence[Any]) -> Iterator[None]:
        """Record the operations that this thread makes in calls of `layers` inside."""
        with tracing.set_to(recorder=self if layers else None):
            with share_attributes("call", [(layer, _record_calls) for layer in layers]):
                yield

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Record all operations inside, in a separate scope."""
        with self._record(True), tf.name_scope(f"call_on_each_replica_{len(self._scopes)}") as scope:
            self._scopes.add(scope.split("/")[-2])
            yield

    def of_gradient(self, scope: str) -> contextlib.AbstractContextManager[None]:
        """Record operations inside if they differentiate a recorded one, which was made in `scope`."""
        return self._record(self._inside or not self._scopes.isdisjoint(scope.split("/")))

    @contextlib.contextmanager
    def _record(self, inside: bool) -> Iterator[None]:
        outer, self._inside = self._inside, inside
        try:
            yield
        finally:
            self._inside = outer

    def note(self, op: tf.Operation) -> None:
        """Record an operation that has just been made, if it is one of these."""
        graph: Any = op.graph
        forward = getattr(graph, "_forward_graph", None)  # of the gradient of a branch or a loop
        if self._inside or (forward is not None and id(forward._default_original_op) in self._operations):
            self._operations[id(op)] = op


def _record_calls(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def recorded_call(*args: Any, **kwargs: Any) -> Any:
        if tracing.recorder is None:
            return call(*args, **kwargs)
        with tracing.recorder.block():
            return call(*args, **kwargs)

    return recorded_call


def note_made_operations(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `create`, which makes an operation, as `FuncGraph._create_op_internal`; see `MadeOperations`."""

    @functools.wraps(create)
    def create_and_note(*args: Any, **kwargs: Any) -> Any:
        operation = create(*args, **kwargs)
        if tracing.recorder is not None:
            tracing.recorder.note(operation)
        return operation

    return create_and_note


def make_matrices_of_diagonals(
    make: Callable[[Sequence[Any]], tf.Operation], inputs: Sequence[Any]
) -> tf.Operation:
    """Return the `MatrixDiagV2` or `MatrixDiagV3` that `make(inputs)` creates, with the shape that its matrices have.

    Where the length of an upper or a lower diagonal is unknown, TensorFlow calculates with a length of -1, and `tf.shape` of
    the matrices is wrong. It does not where it cannot know which diagonal it is.
    """
    diagonal, k, *others = inputs
    shape, places = diagonal.shape, tf.get_static_value(k)
    if shape.rank is None or shape[-1] is not None or places is None or not np.any(places):
        return make(inputs)
    one = np.min(places) == np.max(places)
    made = make([diagonal, tf.compat.v1.placeholder_with_default(k, k.shape), *others])
    made.outputs[0].set_shape([*(shape[:-1] if one else shape[:-2]), None, None])
    return made
