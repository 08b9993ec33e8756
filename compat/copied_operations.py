"""What code made in a graph for one variable, made again for others of its kind without running the code again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework.func_graph import FuncGraph

from .variables import is_plain


class TracedOnce:
    """Runs code that makes operations for variables and tensors, its places: once for all places of a kind.

    For later places of the same dtypes, shapes and devices the operations are made again with these places in place of the
    first: types, attributes and order are as if the code had run, in a third of the time. So the code may look at nothing
    else of its places, and may do nothing but make operations. What depends on no place and has no effect serves all.

    Context: one graph and one block of it (a branch, a loop's body). Where a gradient tape records, outside of graphs of
    functions, and for places that are no plain variables or dense tensors of a graph, the code is run each time.
    """

    def __init__(self) -> None:
        self.first: dict[Any, _Made] = {}

    def __call__(self, make: Callable[[], Any], places: Sequence[Any]) -> None:
        """Has what `make` makes for `places` (tensors, and TensorFlow's variables) in the graph."""
        graph: Any = tf.compat.v1.get_default_graph()
        if not _can_be_copied(graph, places):
            make()
            return
        kind = graph, tuple((place.dtype, tuple(place.shape.as_list()), place.device) for place in places)
        first = self.first.get(kind)
        if first is None:
            begin = graph.num_operations()
            make()
            self.first[kind] = _Made(graph, list(places), begin, graph.num_operations())
        elif not first.made_again_for(places):
            make()


class _Again(NamedTuple):
    """An operation that is made again, the dtypes of its outputs, and its attributes."""

    operation: Any
    dtypes: list[Any]
    attributes: dict[str, Any]


class _Made:
    """Operations number `begin` to `end` of a graph, which code made for `places`."""

    def __init__(self, graph: Any, places: list[Any], begin: int, end: int) -> None:
        self.graph, self.places, self.begin, self.end = graph, places, begin, end
        self.again: list[_Again] | None = None
        self.place_of: dict[int, int] = {}

    def made_again_for(self, places: Sequence[Any]) -> bool:
        """Makes them for `places`; false, and nothing made, where that cannot be done."""
        if self.again is None:
            self.again = self.read()
        if not self.again:
            return False
        now = {inside: _tensor_of(places[index]) for inside, index in self.place_of.items()}
        for operation, dtypes, attributes in self.again:
            inputs = [now.get(id(each), each) for each in operation.inputs]
            new = self.graph._create_op_internal(
                operation.type, inputs, dtypes, name=operation.type, attrs=attributes, op_def=operation.op_def
            )
            now.update(zip(map(id, operation.outputs), new.outputs))
        return True

    def read(self) -> list[_Again]:
        """The operations that depend on a place or have an effect; none where one of them is of an unknown kind."""
        captured = {id(outer): inner for outer, inner in self.graph.captures}
        for index, place in enumerate(self.places):
            tensor = _tensor_of(place)
            self.place_of[id(captured.get(id(tensor), tensor))] = index
        changing, again = set(self.place_of), []
        inside = self.graph.get_operations()[self.begin : self.end]
        for operation in inside:
            if operation.type == "Placeholder":  # something from outside that was used here first
                continue
            attributes = dict(operation.node_def.attr.items())
            waits = any(each in inside for each in operation.control_inputs)
            if waits or "_class" in attributes or any(each.HasField("func") for each in attributes.values()):
                return []
            if operation.op_def.is_stateful or any(id(each) in changing for each in operation.inputs):
                changing.update(map(id, operation.outputs))
                again.append(_Again(operation, [each.dtype for each in operation.outputs], attributes))
        return again


def _can_be_copied(graph: Any, places: Sequence[Any]) -> bool:
    return (
        isinstance(graph, FuncGraph)
        and graph._get_control_flow_context() is None
        and not record.could_possibly_record()
        and all(is_plain(place) or tf.is_symbolic_tensor(place) for place in places)
        and all(place.shape.rank is not None for place in places)
    )


def _tensor_of(place: Any) -> Any:
    return place.handle if isinstance(place, tf.Variable) else place
