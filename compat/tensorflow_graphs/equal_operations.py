"""Scalar operations and small constants that are repeated for each variable are made once, where they are equal."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..thread_context import tracing
from ..upstream_places import record

_OF_SCALARS = """
Abs AddV2 Cast Const DivNoNan Equal Exp Floor FloorDiv FloorMod Greater GreaterEqual Identity Less LessEqual Log LogicalAnd
LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg NotEqual Pow RealDiv Reciprocal Rsqrt SelectV2 Sqrt Square Sub
TruncateDiv
"""
_PURE = frozenset(_OF_SCALARS.split())  # the same inputs give the same output, and nothing else happens
_LARGEST = 64  # elements of a constant


@contextlib.contextmanager
def reuse_equal_operations(operations: dict[Any, Any] | None = None) -> Iterator[None]:
    """In the block, a graph returns the existing operation when this thread asks for an equal one.

    This holds for small constants and for scalar operations. An update rule that is traced for each of many variables
    repeats its bias corrections, and a backward pass repeats each shape. The values are those of a separate operation:
    type, attributes, inputs, devices and control inputs are the same.
    While a gradient tape records, nothing is shared, because a tape distinguishes equal tensors.

    The dictionary `operations` keeps the operations for another block. Blocks on variables of several devices have one for
    each device, so that no value is copied between devices.

    Context: a fit, in which `once_where_asked` is in place; nothing is shared elsewhere.
    """
    with tracing.set_to(made_once={} if operations is None else operations):
        yield


def once_where_asked(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `create`, which makes an operation, as `FuncGraph._create_op_internal`; see `made_once`."""

    @functools.wraps(create)
    def create_or_find(
        graph: Any, op_type: str, inputs: Sequence[Any], dtypes: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        known = tracing.made_once
        attributes = kwargs.get("attrs")
        if known is None or attributes is None or op_type not in _PURE or not _is_small(inputs, attributes):
            return create(graph, op_type, inputs, dtypes, *args, **kwargs)
        around = (graph, *inputs, *_surroundings(graph))
        contents = sorted((name, value.SerializeToString()) for name, value in attributes.items())
        key = op_type, tuple(map(id, around)), tuple(contents)
        # Objects that the key names by identity are kept alive, so that their ids are not reused.
        if key not in known:
            known[key] = create(graph, op_type, inputs, dtypes, *args, **kwargs), around
        return known[key][0]

    return create_or_find


def _is_small(inputs: Sequence[Any], attributes: Any) -> bool:
    if record.could_possibly_record() or not all(isinstance(each, tf.Tensor) for each in inputs):
        return False
    value = attributes.get("value")
    if value is not None and math.prod(dim.size for dim in value.tensor.tensor_shape.dim) > _LARGEST:
        return False
    return all(each.shape.rank == 0 for each in inputs)


def _surroundings(graph: Any) -> Iterator[Any]:
    """Yield the control inputs of an operation that is made now, and its device and attribute scopes."""
    yield from graph._control_dependencies_stack
    yield from graph._device_function_stack.peek_objs()
    yield from graph._colocation_stack.peek_objs()
    yield from graph._attr_scope_map.values()
    yield graph._get_control_flow_context()
