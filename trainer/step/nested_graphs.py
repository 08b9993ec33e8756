"""Custom functions, branches and loops inside a step: their writes are collected like those of the step itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.variables import stateless_scope
from ...compat.tensorflow_graphs.graphs import inline_function, retrace_compiled, scratch_graph
from ...distribute.step_context import StepContext, current_step
from .collected_writes import CollectedWrites, WriteInNestedGraph


def function_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `tf.function.__call__`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        scope = _find_collector()
        computed = None if scope is None else inline_function(self)
        if scope is None or computed is None:
            return original(self, *args, **kwargs)
        apart = retrace_compiled(self)
        if apart is None:
            return computed(*args, **kwargs)

        def reading_here() -> Any:
            with scope.read_in_this_graph():
                return apart(*args, **kwargs)

        return _compute(reading_here, lambda nested: computed(*args, **kwargs))

    return call


def cond(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `tf.cond`."""

    def cond(pred: Any, true_fn: Any = None, false_fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        def unchanged() -> Any:
            return original(pred, true_fn, false_fn, *args, **kwargs)

        def with_writes(nested: _Nested) -> Any:
            branches = [true_fn, false_fn]
            written = nested.find_written(branches)

            def branch(fn: Callable[[], Any]) -> Callable[[], Any]:
                return lambda: nested.run(fn, written)

            result, values, all_finite = original(pred, *map(branch, branches), *args, **kwargs)
            nested.note(written, values, all_finite)
            return result

        return _compute(unchanged, with_writes)

    return cond


def while_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `tf.while_loop`."""

    def while_loop(
        cond: Any, body: Any, loop_vars: Any, shape_invariants: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        def unchanged() -> Any:
            return original(cond, body, loop_vars, shape_invariants, *args, **kwargs)

        def with_writes(nested: _Nested) -> Any:
            written = nested.find_written([lambda: body(*loop_vars)])
            values = [nested.value(variable) for variable in written]
            all_finite = tf.constant(True)
            shapes = None
            if shape_invariants is not None:
                shapes = (shape_invariants, [value.shape for value in values], all_finite.shape)

            def test(inner: Any, values: Any, all_finite: Any) -> Any:
                with nested.hold_values(written, values):
                    return cond(*inner)

            def repeated(inner: Any, values: Any, all_finite: Any) -> Any:
                with nested.hold_values(written, values):
                    result, values, applied = nested.run(lambda: body(*inner), written)
                flat = tf.nest.flatten(result, expand_composites=True)
                packed = tf.nest.pack_sequence_as(inner, flat, expand_composites=True)
                return packed, values, tf.logical_and(all_finite, applied)

            same = kwargs.pop("return_same_structure", False)
            inner, values, all_finite = original(
                test,
                repeated,
                (loop_vars, values, all_finite),
                shapes,
                *args,
                return_same_structure=True,
                **kwargs,
            )
            nested.note(written, values, all_finite)
            return inner if same or len(inner) != 1 else inner[0]

        return _compute(unchanged, with_writes)

    return while_loop


def _find_collector() -> CollectedWrites | None:
    """Return the scope that collects the writes of the step that this thread computes."""
    scope = stateless_scope() if current_step() is not None else None
    return scope if isinstance(scope, CollectedWrites) else None


def _compute(unchanged: Callable[[], Any], with_writes: Callable[[_Nested], Any]) -> Any:
    """Return `unchanged()`, unless a write is found in it."""
    scope, step = _find_collector(), current_step()
    if scope is None or step is None:
        return unchanged()
    nested = _Nested(scope, step)
    try:
        return unchanged()
    except WriteInNestedGraph:
        nested.restore()
        return with_writes(nested)


class _Nested:
    """The state at the beginning of a branch or a loop, and at its end.

    The writes of a step are tensors until the step ends, and a tensor cannot leave its graph. So a `tf.function` is
    inlined into the step's graph, unless it has compile options and neither writes nor communicates. A branch that
    writes to Keras variables also returns its writes, and a loop also carries them. Others are unchanged.
    """

    def __init__(self, scope: CollectedWrites, step: StepContext) -> None:
        self._scope, self._step = scope, step
        self._before = dict(scope.state_mapping), dict(scope.variables), dict(step.notes)
        self._finite_checks, self._losses = len(step.finite_checks), len(scope.losses or ())

    def restore(self) -> None:
        """Restore the records of the beginning."""
        for noted, before in zip(
            (self._scope.state_mapping, self._scope.variables, self._step.notes), self._before
        ):
            noted.clear()
            noted.update(before)
        del self._step.finite_checks[self._finite_checks :]
        if self._scope.losses is not None:
            del self._scope.losses[self._losses :]

    def find_written(self, functions: list[Callable[[], Any]]) -> list[keras.Variable]:
        """Find the variables that functions write, also past the scope, except by gradients that are taken for later."""
        written: dict[int, keras.Variable] = {}
        taken = self._step.take_gradients

        def take(optimizer: Any, pairs: Any) -> None:  # it writes their values before it updates them
            self._scope.forget([*(variable for _, variable in pairs), *optimizer.variables])

        self._step.take_gradients = None if taken is None else take
        try:
            for fn in functions:
                with scratch_graph(), self._scope.in_this_graph():
                    fn()
                mapping, variables, _ = self._before
                for key, variable in {**variables, **self._scope.variables}.items():
                    if self._scope.state_mapping.get(key) is not mapping.get(key):
                        written[key] = variable
                self.restore()
        finally:
            self._step.take_gradients = taken
        return list(written.values())

    def run(self, fn: Callable[[], Any], written: list[keras.Variable]) -> Any:
        """Return (result of `fn`, values of the variables after it, whether its updates were applied: a bool tensor)."""
        held = dict(self._scope.state_mapping), dict(self._scope.variables)
        with self._scope.in_this_graph():
            result = fn()
            values = [self.value(variable) for variable in written]
        finite_checks = self._step.finite_checks[self._finite_checks :]
        self.restore()
        self._scope.state_mapping.update(held[0])
        self._scope.variables.update(held[1])
        if isinstance(result, tf.Operation):
            result = None
        return result, values, tf.reduce_all(tf.stack(finite_checks)) if finite_checks else tf.constant(True)

    def value(self, variable: keras.Variable) -> tf.Tensor:
        """Return the current value of the variable."""
        noted = self._scope.state_mapping.get(id(variable))
        return tf.convert_to_tensor(self._scope.own_value(variable)) if noted is None else noted

    @contextlib.contextmanager
    def hold_values(self, written: list[keras.Variable], values: list[tf.Tensor]) -> Iterator[None]:
        """Let the variables have these values inside."""
        with self._scope.in_this_graph():
            for variable, value in zip(written, values):
                self._scope.add_update((variable, value))
            yield
        self.restore()

    def note(self, written: list[keras.Variable], values: list[tf.Tensor], all_finite: tf.Tensor) -> None:
        """Note the final values of the branch or loop."""
        self.restore()
        for variable, value in zip(written, values):
            self._scope.add_update((variable, value))
        self._step.finite_checks.append(all_finite)
