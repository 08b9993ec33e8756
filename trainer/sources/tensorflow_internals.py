"""The one place where the sources touch what is private in TensorFlow; tests/unit/test_sources_internals.py watches it."""

from __future__ import annotations

import tensorflow as tf

# A key in the checkpoint of an iterator for every shuffle in its pipeline that has not reached the end of its input.
LIVE_SHUFFLE = b"epoch_num_random_samples"


def count_shuffles(dataset: tf.data.Dataset) -> int:
    """The `shuffle` transformations in a pipeline, those inside of functions not counted."""
    own = int(type(dataset).__name__ == "_ShuffleDataset")
    return own + sum(count_shuffles(part) for part in dataset._inputs())
