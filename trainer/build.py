"""Every variable exists before the first step: those of the model, its losses, metrics and optimizers."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from . import keras_internals


def build_for(model: Any, spec: Any) -> None:
    """Builds the model for batches of `spec`.

    Keras builds a model symbolically from its `call`. A model with a `train_step` of its own (a GAN, say) may have no
    `call`; what its step creates is then created by tracing that step once, without running it.

    Args:
        model: the model; built parts are left alone.
        spec: nest of `tf.TypeSpec` of one batch, rows None.

    Context: cross-replica, under the model's strategy.
    """
    own_step = model.has_own_train_step()
    if not own_step and _needs_real_tensors(spec):
        _build_with_placeholders(model, spec)
        spec = ()
    try:
        batch = keras.tree.map_structure(_symbolic, _as_nest(spec))
        if not own_step or _can_be_called(model):
            _build_symbolically(model, batch, build_optimizer=not own_step)
    except Exception:
        if not own_step:
            raise


def build_for_prediction(model: Any, spec: Any) -> None:
    """Builds the layers for inputs of `spec`, whatever else the batch holds. Context as `build_for`."""
    if all(layer.built for layer in model._flatten_layers()):
        return
    if _needs_real_tensors(spec):
        _build_with_placeholders(model, spec[:1])
        return
    x = keras.tree.map_structure(_symbolic, spec[0])
    keras.src.backend.compute_output_spec(model, x, training=False)


def _needs_real_tensors(spec: Any) -> bool:
    """Whether a batch holds ragged tensors or extension types, which Keras' symbolic build takes for dense ones."""
    return any(not isinstance(s, tf.TensorSpec | tf.SparseTensorSpec | None) for s in tf.nest.flatten(spec))


def _build_with_placeholders(model: Any, spec: Any) -> None:
    """Creates the variables of layers, metrics and losses by calling them in a scratch graph on tensors of `spec`."""

    def call_everything() -> Any:
        x, y, sample_weight = keras_internals.unpack_x_y_sample_weight(
            keras.tree.map_structure(_placeholder, _as_nest(spec))
        )
        y_pred = model(x, training=False)
        if len(spec) == 1:
            return y_pred
        for part, method in (
            (model._compile_metrics, model.compute_metrics),
            (model._compile_loss, model._compute_loss),
        ):
            if part is not None and not part.built:
                method(x, y, y_pred, sample_weight)
        return y_pred

    keras.src.backend.compute_output_spec(call_everything)


def _placeholder(spec: Any) -> Any:
    if spec is None:
        return None
    parts = [
        tf.compat.v1.placeholder(s.dtype, s.shape) for s in tf.nest.flatten(spec, expand_composites=True)
    ]
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)


def _can_be_called(model: Any) -> bool:
    return type(model).call is not keras.Model.call


def _build_symbolically(model: Any, batch: Any, build_optimizer: bool) -> None:
    optimizer = model.optimizer
    built = optimizer is None or optimizer.built
    if not build_optimizer and not built:
        with keras_internals.pretending_built(optimizer):
            model._symbolic_build(data_batch=batch)
        return
    model._symbolic_build(data_batch=batch)


def _as_nest(spec: Any) -> Any:
    return tuple(spec) if isinstance(spec, list) else spec


def _symbolic(spec: Any) -> Any:
    if spec is None:
        return None
    dtype = keras.backend.standardize_dtype(spec.dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return keras.KerasTensor(spec.shape, dtype, sparse=True)
    if isinstance(spec, tf.RaggedTensorSpec):
        return keras.KerasTensor(spec.shape, dtype, ragged=True, ragged_rank=spec.ragged_rank)
    return keras.KerasTensor(spec.shape, dtype)
