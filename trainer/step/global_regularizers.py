"""Activity regularizers whose value over several replicas is that of one device.

Keras divides the value by the rows of the output. For sums over entries (L1, L2) that is a mean over rows, which is exact on
every replica's own rows. Any other regularizer may be any function of the output: it sees the rows of all replicas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import layers_of
from ...compat.shared_change import shared_attribute
from ...compat.training import compiled_loss
from ...distribute.gathering import gather_for_step
from ...distribute.replicas import check_not_in_xla
from ...distribute.step_context import current_step, step_scope
from .global_metrics import exact_updates, metrics_of

_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


@contextlib.contextmanager
def whole_batch_values(model: TrainedModel, several: bool) -> Iterator[None]:
    """While a step is traced, metrics and activity regularizers have their values of the whole global batch.

    Args:
        model: the model.
        several: whether there are several replicas; with one, only the metrics of losses are not
            Keras' own: they count rows.

    Context: cross-replica, around `strategy.run`.
    """
    loss = compiled_loss(model)
    losses = [] if loss is None else loss.metrics
    if not several:
        with exact_updates(losses, losses):
            yield
    else:
        with exact_updates(metrics_of(model), losses), exact_regularizers(model):
            yield


@contextlib.contextmanager
def exact_regularizers(model: TrainedModel) -> Iterator[None]:
    """While a step on several replicas is traced, activity regularizers do what the module says.

    Context: cross-replica, around `strategy.run`; the regularizers are called in replica context.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            if _looks_at_all_rows(layer.activity_regularizer):
                stack.enter_context(shared_attribute(layer, "activity_regularizer", _on_all_rows))
        yield


def _looks_at_all_rows(regularizer: Any) -> bool:
    rowwise = type(regularizer) in _SUMS or getattr(regularizer, "_unisono_rowwise", False)
    return regularizer is not None and not rowwise


def _on_all_rows(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def regularizer(output: tf.Tensor) -> tf.Tensor:
        step = current_step()
        if step is None or step.num_replicas == 1 or output.shape.rank == 0:
            return original(output)
        check_not_in_xla("an activity regularizer that may look at the whole batch (see `unisono.rowwise`)")
        everyone = gather_for_step(output)
        with step_scope(step.on_all_rows()):
            value = tf.convert_to_tensor(original(everyone))
        own, total = tf.shape(output)[0], tf.shape(everyone)[0]
        # Keras divides by its own rows.
        return value * tf.cast(own, value.dtype) / tf.cast(total, value.dtype)

    return regularizer
