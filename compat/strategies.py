"""What a strategy and its replicas know of themselves."""

from __future__ import annotations

import tensorflow as tf


def bytes_per_pack(strategy: tf.distribute.Strategy) -> int:
    """What the `CommunicationOptions` of a MultiWorkerMirroredStrategy say; 0: they leave it to TensorFlow."""
    return strategy.extended._communication_options.bytes_per_pack


def devices_of(strategy: tf.distribute.Strategy) -> list[str]:
    """The names of the devices that replicas compute on."""
    return getattr(strategy.extended, "_devices", None) or ["default device"]


def traced_replica() -> int | None:
    """The number of the replica in its own worker, where a thread traces each; None where one trace serves them all."""
    index = getattr(tf.distribute.get_replica_context(), "_replica_id", None)
    return index if isinstance(index, int) else None
