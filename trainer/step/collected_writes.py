"""The writes of a step: collected while it is computed, and made at its end, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import forget_losses
from ...compat.keras_private.variables import find_stored_dtype, raw_value, stateless_scope
from ...compat.tensorflow_graphs.edges import graph_of_replica
from ...compat.tensorflow_graphs.graphs import enter_this_graph, is_inside
from ...compat.tensorflow_private.strategies import check_merges
from ...compat.wrong_use import WrongUse
from ...distribute.parameter_servers.updates import colocate_with
from ...distribute.replicas import once_per_copy
from ...distribute.sharding.sharded_value import is_sharded, layout_of, own_copy
from ...distribute.step_context import StepContext


class WriteInNestedGraph(BaseException):
    """A compiled function writes or communicates, or the body of a loop has written. Users' code does not catch it."""


class CollectedWrites(keras.StatelessScope):
    """A scope in which assignments to Keras variables are recorded instead of made; reads see the recorded values.

    Attributes:
        variables: the assigned ones, by their ids.
        adders: the layers that have added losses in it.
    """

    def __init__(self) -> None:
        super().__init__(collect_losses=True)
        self.variables: dict[int, keras.Variable] = {}
        self.adders: list[keras.layers.Layer] = []
        self._graph = tf.compat.v1.get_default_graph()
        self._reads_here: Any = None
        self._merging = contextlib.ExitStack()

    @contextlib.contextmanager
    def in_this_graph(self) -> Iterator[None]:
        """Record writes inside the current graph, in which the scope was not entered."""
        before, self._graph = self._graph, tf.compat.v1.get_default_graph()
        try:
            yield
        finally:
            self._graph = before

    @property
    def _is_in_nested_graph(self) -> bool:
        return not tf.executing_eagerly() and is_inside(tf.compat.v1.get_default_graph(), self._graph)

    def _check_graph(self, variable: keras.Variable) -> None:
        """Raise an error where a written value could not leave its graph."""
        if self._is_in_function:
            raise WriteInNestedGraph
        if self._is_in_nested_graph:
            raise WrongUse(
                f"`{variable.path}` is assigned in a graph whose results the step does not know, such as a branch of "
                "`tf.switch_case` (`keras.ops.switch`): use `tf.case` or `tf.cond`, or assign what the branch returns."
            )

    @property
    def _is_in_function(self) -> bool:
        """Whether this is the graph of a function that reads variables outside of itself."""
        return self._reads_here is not None and self._is_in_nested_graph

    @contextlib.contextmanager
    def read_in_this_graph(self) -> Iterator[None]:
        """Read variables in this graph inside, as XLA compiles for one device and cannot read those of others."""
        before, self._reads_here = self._reads_here, enter_this_graph()
        try:
            yield
        finally:
            self._reads_here = before

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Record one assignment (Keras calls this)."""
        variable, value = update
        self._check_graph(variable)
        self.variables[id(variable)] = variable
        super().add_update((variable, tf.cast(value, find_stored_dtype(variable))))

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Return the recorded value, or the variable's own (Keras calls this).

        A tape identifies a weight by its variable, even after the step has assigned to it: spectral normalization assigns
        the weight that it then uses, and sharpness-aware minimization takes a gradient at weights that it has moved. A read
        does not pass a gradient to an earlier assignment, such as that of a running mean.
        """
        noted = super().get_current_value(variable)
        if noted is None:
            own = self.own_value(variable)
            if own is None or self._reads_here is None:
                return own
            with self._reads_here():
                return tf.convert_to_tensor(own)
        if self.stands_for_variable(variable):
            return _of_variable(noted, tf.convert_to_tensor(raw_value(variable)))
        written = id(variable) in self.variables and noted.dtype.is_floating
        return tf.stop_gradient(noted) if written else noted

    def own_value(self, variable: keras.Variable) -> Any:
        """Return the TensorFlow variable, or what stands for it, before any assignment; None for one without a value."""
        return raw_value(variable)

    def stands_for_variable(self, variable: keras.Variable) -> bool:
        """Return whether the gradient of the assigned value is the variable's."""
        floating = tf.as_dtype(variable.dtype).is_floating
        known = id(variable) in self.variables or (
            self._reads_here is not None and id(variable) not in self.state_mapping
        )
        return variable.trainable and floating and known and raw_value(variable) is not None

    def items(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Return (variable, last value) pairs, in the order of the first assignment."""
        return [(variable, self.state_mapping[key]) for key, variable in self.variables.items()]

    def __enter__(self) -> CollectedWrites:
        """Begin the scope."""
        self._merging.enter_context(check_merges(self._check_merge))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End the scope. Layers drop their added losses: they know them by ids, which other tensors may get."""
        super().__exit__(*error)
        self._merging.close()
        for layer in self.adders:
            forget_losses(layer, self.losses)

    @staticmethod
    def _check_merge() -> None:
        """Raise an error where replicas cannot wait for each other, or the function is traced again without a graph."""
        scope = stateless_scope()
        if isinstance(scope, CollectedWrites) and scope._is_in_function:
            raise WriteInNestedGraph
        own = graph_of_replica()
        if own is not None and own is not tf.compat.v1.get_default_graph():
            raise WrongUse(
                "`merge_call` is called in a branch, a loop or an optimizer's update (`update_step`), where replicas cannot "
                "wait for each other: call it in `apply_gradients` of the optimizer, before `super().apply_gradients`, or "
                "leave it out, because the gradients of an update are sums over all replicas."
            )

    def forget(self, variables: Iterable[Any]) -> None:
        """Drop the records for `variables`, which have been written since. In a branch that is a write of it."""
        for variable in variables:
            if id(variable) in self.variables:
                self._check_graph(variable)
            self.variables.pop(id(variable), None)
            self.state_mapping.pop(id(variable), None)

    def make(self, step: StepContext) -> None:
        """Write each variable's new value into this replica's copy, if the step was not skipped.

        The values are equal on every replica, but for parts of sums: those of metrics. Context: after the scope's end.
        """
        writes = self.items()
        if not writes:
            return
        copies = [own_copy(variable) for variable, _ in writes]
        # Values are whole where shards are flat; where a layout divides a weight they are parts already.
        flat = [is_sharded(variable) and layout_of(variable) is None for variable, _ in writes]

        def write(values: list[tf.Tensor], applied: tf.Tensor | None) -> None:
            for (variable, _), copy, is_flat, value in zip(writes, copies, flat, values):
                with colocate_with(copy):
                    value = self.new_value(variable, copy, value)
                    if is_flat:
                        value = raw_value(variable).layout.own_part(value)
                    copy.assign(value if applied is None else tf.where(applied, value, copy))

        once_per_copy(write)([value for _, value in writes], step.applied)

    def new_value(self, variable: keras.Variable, copy: tf.Variable, value: tf.Tensor) -> tf.Tensor:
        """Return the value to write to a copy of the variable: the recorded one."""
        return value


@tf.custom_gradient
def _of_variable(value: tf.Tensor, before: tf.Tensor) -> Any:
    """Return `value` with the gradient of the variable that was read as `before`; none flows further back."""
    return tf.identity(value), lambda gradient: (None, gradient)
