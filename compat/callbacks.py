"""What Keras' own callbacks keep for themselves."""

from __future__ import annotations

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
