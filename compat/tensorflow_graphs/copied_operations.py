"""Operations that code made in a graph for one variable, copied for similar variables without running the code again."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..keras_private.variables import is_plain
from ..upstream_places import FuncGraph, op_callbacks, record, variable_accessed
from .edges import copy_operation, holds_functions


class TracedOnce:
    """Runs code that makes operations for variables and tensors ("places"), once for all places of a kind.

    For later places of the same dtypes, shapes and devices the operations are copied with these places as inputs: types,
    attributes, devices and order are as if the code had run; the stacks in error messages are the first's. So the code may
    read nothing else of its places, and may do nothing but make operations. Operations that depend on no place and have no
    effect are shared.

    Context: one graph and one block of it (a branch, a loop's body). Outside graphs of functions, where a gradient tape
    records, for places other than plain variables and dense tensors of a graph, and where `is_allowed` is false, because the
    code may not meet these conditions, it is run each time.
    """

    def __init__(self, is_allowed: bool = True) -> None:
        self.is_allowed = is_allowed
        self.first: dict[Any, _First] = {}

    def __call__(self, make: Callable[[], Any], places: Sequence[Any]) -> None:
        """Add the operations to the graph that `make` would add for `places` (tensors and TensorFlow's variables)."""
        graph: Any = tf.compat.v1.get_default_graph()
        if not (self.is_allowed and _can_be_copied(graph, places)):
            make()
            return
        kind = graph, tuple((place.dtype, tuple(place.shape.as_list()), place.device) for place in places)
        first = self.first.get(kind)
        if first is None:
            begin = graph.num_operations()
            make()
            self.first[kind] = _First(graph, list(places), begin, graph.num_operations())
        elif not first.copy_for(places):
            make()


class _First:
    """Operations number `begin` to `end` of a graph, which code made for `places`, the first of their kind."""

    def __init__(self, graph: Any, places: list[Any], begin: int, end: int) -> None:
        self.graph, self.places, self.begin, self.end = graph, places, begin, end
        self.place_of: dict[int, int] = {}  # id of a tensor in the graph -> number of the place that it is

    def copy_for(self, places: Sequence[Any]) -> bool:
        """Copy the operations for `places`; return False, having made nothing, where they cannot be copied."""
        if self.recorded is None:
            return False
        now = {inside: _tensor_of(places[number]) for inside, number in self.place_of.items()}
        for operation, attributes in self.recorded:
            inputs = [now.get(id(each), each) for each in operation.inputs]
            now.update(zip(map(id, operation.outputs), copy_operation(operation, inputs, attributes)))
        for number in set(self.place_of.values()):
            if isinstance(places[number], tf.Variable):
                variable_accessed(places[number])  # a function lists the variables that it needs
        return True

    @functools.cached_property
    def recorded(self) -> list[tuple[Any, dict[str, Any]]] | None:
        """The operations that depend on a place or have an effect, and their attributes; None if one cannot be copied."""
        captured = {id(outer): inner for outer, inner in self.graph.captures}
        known = [captured.get(id(tensor), tensor) for tensor in map(_tensor_of, self.places)]
        made = self.graph.get_operations()[self.begin : self.end]
        used = {id(each) for operation in made for each in operation.inputs}
        self.place_of = {id(each): number for number, each in enumerate(known) if id(each) in used}
        changing, recorded = set(self.place_of), []
        for operation in made:
            if operation.type == "Placeholder":  # something from outside that was used here first
                continue
            if any(each in made for each in operation.control_inputs):
                return None
            has_effect = operation.op_def.is_stateful
            if not (has_effect or any(id(each) in changing for each in operation.inputs)):
                continue
            attributes = dict(operation.node_def.attr.items())
            on_place = operation.type == "ReadVariableOp" or any(
                id(each) in self.place_of for each in operation.inputs
            )
            if (has_effect and not on_place) or "_class" in attributes or holds_functions(operation):
                return None
            changing.update(map(id, operation.outputs))
            recorded.append((operation, attributes))
        return recorded


def _can_be_copied(graph: Any, places: Sequence[Any]) -> bool:
    return (
        isinstance(graph, FuncGraph)
        and not tf.executing_eagerly()
        and not graph.capture_by_value
        and graph._get_control_flow_context() is None
        and not record.could_possibly_record()
        and not op_callbacks.should_invoke_op_callbacks()
        and all(_is_place(place) and place.shape.rank is not None for place in places)
    )


def _is_place(place: Any) -> bool:
    if is_plain(place):
        return place._cached_value is None  # TensorFlow would read the cached value instead
    return tf.is_symbolic_tensor(place)


def _tensor_of(place: Any) -> Any:
    return place.handle if isinstance(place, tf.Variable) else place
