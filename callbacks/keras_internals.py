"""What this package touches of Keras without its promise; each has a test in `test_callback_internals.py`."""

from __future__ import annotations

from typing import Any

from keras.src.backend.common import global_state
from keras.src.random import seed_generator

# Attributes in which Keras' own callbacks keep what they learn during training.
CALLBACK_ATTRIBUTES = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "OrbaxCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_total_batches_seen"),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "History": ("history", "epoch"),
    "ProgbarLogger": ("seen",),
}


def global_seed_generator_state(make: bool = False) -> Any:
    """The `keras.Variable` of the generator behind `seed=None`; None if it was never used, unless `make`."""
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    if generator is None and make:
        generator = seed_generator.global_seed_generator()
    return None if generator is None else generator.state


def layers_of(model: Any) -> list[Any]:
    """The model and every layer in it, in a fixed order."""
    return list(model._flatten_layers())
