"""The outputs of predictions: those of replicas, and of the batches of a loop in the graph."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...distribute.arguments import show
from ...distribute.gathering import gather_outputs
from ...distribute.step_context import this_step
from ...distribute.workers.agreement import spans_workers
from ..inputs.batch import concat_samples, is_scalar


class ShapesVary(Exception):
    """The traced step's outputs have no fixed shape."""


def check_outputs(
    predict_step: Callable[[Any], Any], strategy: tf.distribute.Strategy
) -> Callable[[Any], Any]:
    """Wrap `predict_step`, which must return tensors; each of several workers returns the outputs of all."""
    several_workers = spans_workers(strategy)

    def predict(data: Any) -> Any:
        outputs = predict_step(data)
        if any(leaf is None for leaf in keras.tree.flatten(outputs)):
            raise TypeError(
                "`predict_step` must return tensors, or a dict, list or tuple of them: is a `return` missing? "
                f"Received: {show(outputs)}"
            )
        return gather_outputs(outputs, this_step()) if several_workers else outputs

    return predict


def outputs_of_replicas(outputs: Any, strategy: tf.distribute.Strategy) -> Any:
    """Return the outputs of all replicas, in the order of the batch; scalars are equal on all. Context: cross-replica."""
    if strategy.num_replicas_in_sync == 1:
        return outputs
    leaves = [list(strategy.experimental_local_results(leaf)) for leaf in keras.tree.flatten(outputs)]
    leaves = [parts[:1] if is_scalar(parts[0]) else parts for parts in leaves]
    if spans_workers(strategy):
        return keras.tree.pack_sequence_as(outputs, [parts[0] for parts in leaves])
    with tf.device("CPU:0"):  # each replica sends its result there
        return keras.tree.pack_sequence_as(outputs, [concat_samples(parts) for parts in leaves])


def loop_spec(output: Any, samples: int | None) -> tf.TensorSpec | None:
    """Return what a loop knows of an output for `samples` samples (None: of any number); None where it could not keep it."""
    if not isinstance(output, tf.Tensor) or not output.shape.rank or samples not in (None, output.shape[0]):
        return None
    return tf.TensorSpec([samples, *output.shape[1:]], output.dtype)


def write_outputs(arrays: list[tf.TensorArray], i: tf.Tensor, outputs: Any) -> list[tf.TensorArray]:
    """Return the arrays with the outputs of batch `i`; raise `ShapesVary` where their shapes are others."""
    leaves = keras.tree.flatten(outputs)
    layout = [(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
    if layout != [(tuple(array.element_shape), array.dtype) for array in arrays]:
        raise ShapesVary
    return [array.write(i, leaf) for array, leaf in zip(arrays, leaves)]
