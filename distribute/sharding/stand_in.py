"""Values that are read and written like a TensorFlow variable, and are none."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...compat.keras_private.variables import TensorType


class VariableStandIn(tf.Variable, TensorType):
    """A value that Keras variables, optimizers and user code take for a `tf.Variable`; a subclass reads and writes it.

    `variable_created_in_scope` reports its strategy, or None, and optimizers know it by the id.
    """

    shape: Any = None
    dtype: Any = None
    name: Any = ""
    device: Any = ""
    trainable: Any = False
    aggregation: Any = tf.VariableAggregation.NONE
    synchronization: Any = tf.VariableSynchronization.AUTO
    constraint = initializer = None
    op = graph = initial_value = property()  # not there, as for any variable in eager mode

    def __init__(self, strategy: Any, unique_id: str) -> None:
        self._distribute_strategy = strategy
        self._unique_id = unique_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} shape={self.shape} dtype={self.dtype.name}>"

    def read_value(self) -> tf.Tensor:
        """Return the value as a tensor."""
        raise NotImplementedError

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: Any = True) -> Any:
        """Replace the value, cast to its dtype."""
        raise NotImplementedError

    @property
    def key(self) -> Any:
        """The id by which optimizers know it."""
        return self._unique_id

    @property
    def value(self) -> VariableStandIn:
        """Itself: a Keras variable reads the variable inside as a value, while `tf.Variable.value` is called."""
        return self

    def __call__(self) -> tf.Tensor:
        """Return the value as a tensor: `variable.value()`."""
        return self.read_value()

    def assign_add(self, delta: Any, *options: Any, **named: Any) -> Any:
        """Add `delta`, cast to the dtype of the value."""
        return self.assign(self.read_value() + tf.cast(delta, self.dtype), *options, **named)

    def assign_sub(self, delta: Any, *options: Any, **named: Any) -> Any:
        """Subtract `delta`, cast to the dtype of the value."""
        return self.assign(self.read_value() - tf.cast(delta, self.dtype), *options, **named)

    def sparse_read(self, indices: Any, name: Any = None) -> tf.Tensor:
        """Return the slices at `indices` along the first axis."""
        return tf.gather(self.read_value(), indices)

    def gather_nd(self, indices: Any, name: Any = None) -> tf.Tensor:
        """Return the elements or slices at `indices`, as `tf.gather_nd` does."""
        return tf.gather_nd(self.read_value(), indices)

    def is_initialized(self, name: Any = None) -> tf.Tensor:
        """Return True: the value exists from the beginning."""
        return tf.constant(True)

    def numpy(self) -> Any:
        """Return the value as an array. Context: eager."""
        return self.read_value().numpy()  # pyright: ignore[reportAttributeAccessIssue]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy().astype(dtype) if dtype is not None else self.numpy()

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        value = self.read_value()
        return value if dtype is None else tf.cast(value, dtype)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {"VARIABLE_VALUE": self.read_value()}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        return self.assign(restored_tensors["VARIABLE_VALUE"])


def _provide_scatter(kind: str) -> None:
    """Add `scatter_<kind>` and `scatter_nd_<kind>`, which write slices and elements."""

    def write(self: Any, indices: Any, updates: Any, name: Any = None) -> Any:
        return self.assign(getattr(tf, f"tensor_scatter_nd_{kind}")(self.read_value(), indices, updates))

    def write_slices(
        self: Any, sparse_delta: tf.IndexedSlices, use_locking: Any = False, name: Any = None
    ) -> Any:
        return write(self, tf.expand_dims(sparse_delta.indices, -1), sparse_delta.values)

    setattr(VariableStandIn, f"scatter_nd_{kind}", write)
    setattr(VariableStandIn, f"scatter_{kind}", write_slices)


def _read_number(name: str) -> Any:
    return lambda self: getattr(self.read_value(), name)()


for _name in ("add", "sub", "update", "max", "min"):
    _provide_scatter(_name)
for _name in ("__bool__", "__int__", "__float__", "__complex__"):
    setattr(VariableStandIn, _name, _read_number(_name))
