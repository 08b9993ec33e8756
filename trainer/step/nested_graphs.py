"""Custom functions, branches and loops inside a step: their writes are collected like those of the step itself.

The writes of a step are tensors until the step ends, and a tensor cannot leave its graph. So a branch also returns the
values that it writes, a loop also carries them, and a `tf.function` is inlined into the step's graph, unless it has compile
options and neither writes nor communicates. Branches are traced once. A loop that writes is traced twice: TensorFlow asks
what it carries before its body is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ...compat.keras_private.variables import stateless_scope
from ...compat.tensorflow_graphs.graphs import inline_function, retrace_compiled, return_more
from ...compat.wrong_use import WrongUse
from ...distribute.step_context import StepContext, current_step
from .collected_writes import CollectedWrites, WriteInNestedGraph

Written = dict[int, tuple[keras.Variable, tf.Tensor]]  # variables and their values, by the variables' ids


def function_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `tf.function.__call__`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nested = _Nested.here()
        computed = None if nested is None else inline_function(self)
        if nested is None or computed is None:
            return original(self, *args, **kwargs)
        apart = retrace_compiled(self)
        if apart is None:
            return computed(*args, **kwargs)
        try:
            with nested.scope.read_in_this_graph():
                return apart(*args, **kwargs)
        except WriteInNestedGraph:
            nested.restore()
        return computed(*args, **kwargs)

    return call


def cond(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `tf.cond`."""

    def cond(pred: Any, true_fn: Any = None, false_fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        nested = _Nested.here()
        if nested is None or tf.executing_eagerly():
            return original(pred, true_fn, false_fn, *args, **kwargs)
        ends: list[_End] = []

        def branch(fn: Callable[[], Any]) -> Callable[[], Any]:
            def trace() -> tuple[Any, list[tf.Tensor]]:
                ends.append(nested.run(fn))
                if len(ends) == 1:
                    return ends[0].result, []  # what it returns besides is known after the other branch
                first, last = ends
                both = first.join(last)
                return_more(first.graph, lambda: nested.find_values(first, both))
                return last.result, nested.find_values(last, both)

            return trace

        result, values = original(pred, branch(true_fn), branch(false_fn), *args, **kwargs)
        nested.note(ends[0].join(ends[1]), values)
        return result

    return cond


def while_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `tf.while_loop`."""

    def while_loop(
        cond: Any, body: Any, loop_vars: Any, shape_invariants: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        nested = _Nested.here()
        if nested is None or tf.executing_eagerly():
            return original(cond, body, loop_vars, shape_invariants, *args, **kwargs)
        same = kwargs.pop("return_same_structure", False)

        def trace(known: _End, first: bool) -> Any:
            before = nested.find_values(_NOTHING, known)

            def test(inner: Any, values: Any) -> Any:
                end = nested.run(lambda: cond(*inner), known, values)
                if end.written.keys() != known.written.keys():
                    raise WrongUse(f"The condition of a loop assigns {end.names}: assign it in the body.")
                return end.result

            def turn(inner: Any, values: Any) -> Any:
                end = nested.run(lambda: body(*inner), known, values, first)
                if first and (end.written or end.checks or end.taken):
                    raise WriteInNestedGraph(end)  # past TensorFlow's code: the body has ended
                if end.written.keys() != known.written.keys():
                    raise WrongUse(
                        f"The body of a loop assigned {known.names} when it was traced, and {end.names} when it was traced "
                        "again: let it assign the same variables each time."
                    )
                result = end.result if tf.nest.is_nested(end.result) else [end.result]
                return result, nested.find_values(end, known)

            shapes = shape_invariants and (shape_invariants, [value.shape for value in before])
            given = (loop_vars, before), shapes, *args
            inner, values = original(test, turn, *given, return_same_structure=True, **kwargs)
            nested.note(known, values)
            return inner if same or len(inner) != 1 else inner[0]

        try:
            return trace(_NOTHING, first=True)
        except WriteInNestedGraph as found:
            (known,) = found.args
        nested.restore()
        return trace(known, first=False)

    return while_loop


class _End(NamedTuple):
    """What a branch, or the condition or body of a loop, has done at its end, in tensors of its graph."""

    graph: Any = None
    result: Any = None
    written: Written = {}
    checks: Sequence[tf.Tensor] = ()  # whether its optimizers applied their updates
    taken: Sequence[Any] = ()  # the optimizers whose gradients were taken

    def join(self, other: _End) -> _End:
        """Return what one of two branches has done."""
        return _End(written=self.written | other.written, checks=[*self.checks, *other.checks])

    @property
    def names(self) -> str:
        """The names of the variables that it has written."""
        return ", ".join(f"`{variable.path}`" for variable, _ in self.written.values()) or "none"


_NOTHING = _End()


class _Nested:
    """The state of a step where a function, a branch or a loop begins."""

    def __init__(self, scope: CollectedWrites, step: StepContext) -> None:
        self.scope, self._step = scope, step
        self._before = dict(scope.state_mapping), dict(scope.variables), dict(step.notes)
        self._checks, self._losses = len(step.finite_checks), len(scope.losses)

    @classmethod
    def here(cls) -> _Nested | None:
        """Return the state of the step that this thread computes, if a scope collects its writes."""
        scope, step = stateless_scope(), current_step()
        return cls(scope, step) if step is not None and isinstance(scope, CollectedWrites) else None

    def restore(self, losses: bool = True) -> None:
        """Restore the records of the beginning; the `losses`, too, if the same code is traced again."""
        now = self.scope.state_mapping, self.scope.variables, self._step.notes
        for noted, before in zip(now, self._before):
            noted.clear()
            noted.update(before)
        del self._step.finite_checks[self._checks :]
        if losses:
            del self.scope.losses[self._losses :]

    def run(self, fn: Any, known: _End = _NOTHING, values: Any = (), first: bool = False) -> _End:
        """Trace `fn()` in this graph, where what is `known` to be written has these `values`, and restore the records.

        If it is traced for the `first` time and may be traced again, it does not take gradients.
        """
        taken, take = list[Any](), self._step.take_gradients

        def drop(optimizer: Any, pairs: Any) -> None:
            taken.append(optimizer)  # the variables' values would be written before their updates
            self.scope.forget([*(variable for _, variable in pairs), *optimizer.variables])

        self._step.take_gradients = drop if first and take is not None else take
        try:
            with self.scope.in_this_graph():
                self.note(known, values)
                result = fn()
        finally:
            self._step.take_gradients = take
        now, (before, variables, _) = self.scope.state_mapping, self._before
        every = variables | self.scope.variables | {key: v for key, (v, _) in known.written.items()}
        written = {  # also what an optimizer has written past the records
            key: (variable, self._value(variable))
            for key, variable in every.items()
            if key in known.written or now.get(key) is not before.get(key)
        }
        checks = self._step.finite_checks[self._checks :]
        self.restore(losses=False)
        return _End(tf.compat.v1.get_default_graph(), result, written, checks, taken)

    def find_values(self, end: _End, known: _End) -> list[tf.Tensor]:
        """Return the values that an end has, in its graph, of what `known` has written, and whether updates were applied."""
        values = [
            end.written[key][1] if key in end.written else self._value(variable)
            for key, (variable, _) in known.written.items()
        ]
        if known.checks:
            values.append(tf.reduce_all(tf.stack(end.checks)) if end.checks else tf.constant(True))
        return values

    def note(self, known: _End, values: Sequence[tf.Tensor]) -> None:
        """Note these values of what `known` has written."""
        for (variable, _), value in zip(known.written.values(), values):
            self.scope.add_update((variable, value))
        self._step.finite_checks.extend(values[len(known.written) :])

    def _value(self, variable: keras.Variable) -> tf.Tensor:
        noted = self.scope.state_mapping.get(id(variable))
        return tf.convert_to_tensor(self.scope.own_value(variable)) if noted is None else noted
