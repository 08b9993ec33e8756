"""Values that hold in a block, for the thread inside it: one table of names for each package that has such values."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


class ThreadContext(threading.local):
    """A subclass declares its values, each with the one that holds outside all blocks."""

    @contextlib.contextmanager
    def set_to(self, **values: Any) -> Iterator[None]:
        """In the block this thread has these values."""
        outer = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(outer)


class _Tracing(ThreadContext):
    made_once: dict[Any, Any] | None = None  # the operations that are made once where they are equal
    recorder: Any = None  # a `MadeOperations` that is noting what some layers make
    write_condition: tf.Tensor | None = None  # a bool scalar: where it is false, writes change nothing
    num_replicas: int | None = None  # seen instead of a strategy's own number
    partitions: bool = False  # whether a step is traced that will be partitioned


tracing = _Tracing()
