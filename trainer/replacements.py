"""The replacements of functions: `compat/register.py` has the list, with reasons."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..compat.keras_private.variables import direct_writes, raw_value, stateless_scope
from ..compat.patches import add, provide
from ..compat.register import WRITES_OF_PLACES
from ..compat.tensorflow_graphs.equal_operations import once_where_asked
from ..compat.tensorflow_graphs.graphs import gradient_of_graph
from ..compat.tensorflow_graphs.host_memory import compares_on_host, keep_sizes_on_host, widen_inputs
from ..compat.tensorflow_graphs.made_operations import make_matrices_of_diagonals, note_made_operations
from ..compat.tensorflow_private.parameter_servers import let_assign
from ..distribute.attention import keras_attention as _keras_attention  # noqa: F401  (wraps Keras' function)
from ..distribute.hardware.devices import computes_on_gpu, runs_on_gpu
from ..distribute.parameter_servers.updates import on_parameter_servers, update_on_servers
from ..distribute.replicas import copies_of, in_replica_context, once_per_copy, shares_variables
from ..distribute.step_context import current_step, here
from ..optimizers.adoption import adopt
from ..optimizers.optimizer import Optimizer
from .step import nested_graphs
from .step.collected_writes import CollectedWrites
from .step.first_call import build_outside
from .step.global_loss import loss_of_samples, reduces_by_itself

_SEED_STRIDE = 0x9E3779B1  # 2**32 / golden ratio: neighbouring replicas get distant seeds


def _replaces(key: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let `function(original, *arguments)` replace a function of `REPLACED`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(original: Any) -> Any:
            return lambda *args, **kwargs: function(original, *args, **kwargs)

        provide(key, replacement)
        return function

    return register


@_replaces("Loss.__call__")
def _loss(original: Any, self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    step = current_step()
    if step is None or step.totals is None or not reduces_by_itself(self):
        return original(self, y_true, y_pred, sample_weight)
    return loss_of_samples(self, y_true, y_pred, sample_weight)


@_replaces("Layer._maybe_build")
def _maybe_build(original: Any, self: Any, call_spec: Any) -> None:
    step = current_step()
    if step is not None and step.builds_under is not None and not self.built:
        build_outside(self, call_spec, step.builds_under)
    original(self, call_spec)


@_replaces("BaseOptimizer.apply")
def _apply(original: Any, self: Any, grads: Any, trainable_variables: Any = None) -> Any:
    step = current_step()
    if step is None or isinstance(self, Optimizer):
        return original(self, grads, trainable_variables)
    # A custom optimizer has been called, and has called this.
    return Optimizer.apply(adopt(self), grads, trainable_variables)


@_replaces("SeedGenerator.next")
def _seed(original: Any, self: Any, ordered: bool = True) -> Any:
    step = here.step or here.draws_of
    # No two workers use the same number.
    if step is not None and step.of_custom_loop and on_parameter_servers():
        with direct_writes():
            return update_on_servers(lambda: tf.identity(original(self, ordered)), ())
    elif step is not None and current_step() is None and shares_variables():
        seed = once_per_copy(lambda: original(self, ordered))()
    else:
        seed = original(self, ordered)
    # The first replica, or one with all samples, draws as a single device.
    if step is None or (isinstance(step.replica_id, int) and step.replica_id == 0):
        return seed
    stride = tf.constant([_SEED_STRIDE, 0], tf.int64) * tf.cast(step.replica_id, tf.int64)
    return tf.cast(tf.cast(tf.cast(seed, tf.int64) + stride, tf.uint32), seed.dtype)


@_replaces("Variable.handle")
def _handle(original: Any, self: Any) -> Any:
    scope = stateless_scope()
    if current_step() is None:
        return original(self)
    if isinstance(scope, CollectedWrites) and scope.stands_for_variable(self):
        return raw_value(self).handle
    value = self.value
    return value if isinstance(value, tf.Tensor) else original(self)


@_replaces("CachingVariable.__getitem__")
def _slice(original: Any, self: Any, *places: Any) -> Any:
    part = original(self, *places)
    return part if current_step() is None else let_assign(part, self, *places)


@_replaces("nn._compute_moments_sync")
def _synchronize_moments(original: Any, x: Any, axes: Any, keepdims: Any) -> Any:
    """Return the statistics of the global batch, by TensorFlow's two passes: Keras' difference of squares loses digits."""
    if current_step() is None:
        return original(x, axes, keepdims)
    return tf.nn.moments(x, axes, keepdims=keepdims)


@_replaces("Layer.add_loss")
def _add_loss(original: Any, self: Any, loss: Any) -> None:
    original(self, loss)
    if isinstance(scope := stateless_scope(), CollectedWrites):
        scope.adders.append(self)


@_replaces("Layer._get_regularization_losses")
def _regularization_losses(original: Any, self: Any) -> list[Any]:
    if current_step() is None:
        return original(self)
    return [v.regularizer(v) for v in self.trainable_weights if v.regularizer is not None]


@_replaces("random_ops_util._get_key_counter")
def _key_counter(original: Any, seed: Any, alg: Any) -> Any:
    """Return the same key and counter; TensorFlow's operation for "auto_select" takes the seed from the host's memory."""
    step = current_step()
    if step is None or step.in_xla or tf.executing_eagerly() or not computes_on_gpu():
        return original(seed, alg)
    automatic = alg == tf.random.Algorithm.AUTO_SELECT.value
    return original(seed, tf.random.Algorithm.PHILOX.value if automatic else alg)


def _new_operation(original: Any, self: Any, op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    step = current_step()
    if step is not None and op_type in ("MatrixDiagV2", "MatrixDiagV3"):
        make = lambda inputs: original(self, op_type, inputs, *args, **kwargs)  # noqa: E731
        return make_matrices_of_diagonals(make, inputs)
    if step is None or step.in_xla:
        return original(self, op_type, inputs, *args, **kwargs)
    if "attrs" in kwargs and compares_on_host(self, op_type, inputs) and computes_on_gpu():
        inputs, kwargs = widen_inputs(inputs, kwargs)
    operation = original(self, op_type, inputs, *args, **kwargs)
    if runs_on_gpu(operation.device):
        keep_sizes_on_host(operation)
    return operation


@_replaces("RegisterGradient.__call__")
def _register_gradient(original: Any, self: Any, f: Any) -> Any:
    original(self, f if current_step() is None else gradient_of_graph(self, f))
    return f


def _write_places(name: str) -> Any:
    """Return a method that writes into the copy of a step; outside replicas, as where a layer is first called, into all."""

    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current_step() is not None:
            return getattr(copies_of(self)[0], name)(*args, **kwargs)
        if tf.distribute.has_strategy() and in_replica_context():
            return getattr(tf.Variable, name)(self, *args, **kwargs)  # raises, as copies would differ
        for copy in copies_of(self):
            getattr(copy, name)(*args, **kwargs)
        return self

    return write


provide(
    "FuncGraph._create_op_internal",
    lambda original: once_where_asked(functools.partial(_new_operation, original)),
    once_where_asked,
)
provide("FuncGraph._create_op_internal", note_made_operations, note_made_operations)
for _key, _make in {
    "Function.__call__": nested_graphs.function_call,
    "cond.cond": nested_graphs.cond,
    "while_loop.while_loop": nested_graphs.while_loop,
}.items():
    provide(_key, _make)
for _name in WRITES_OF_PLACES:
    add(_name, _write_places(_name))
