"""What the partition knows of operations, one row a type, one file a family."""

from . import (  # noqa: F401
    copies,
    elementwise,
    indexing,
    joins,
    lists,
    products,
    ragged,
    random,
    reductions,
    samples,
    shapes,
    slices,
    sparse_arrays,
    state,
)
from .call import Call, ReplicaCall, Ruling, View
from .row import NO_ROW, ROWS, Row, ask, find_values, row_of

__all__ = ["NO_ROW", "ROWS", "Call", "ReplicaCall", "Row", "Ruling", "View", "ask", "find_values", "row_of"]
