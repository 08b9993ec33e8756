"""The one place where the sources touch what is private in TensorFlow; tests/unit/test_sources_internals.py watches it."""

from __future__ import annotations

import tensorflow as tf

# A key in the checkpoint of an iterator for every shuffle in its pipeline that has not reached the end of its input.
LIVE_SHUFFLE = b"epoch_num_random_samples"


def count_shuffles(dataset: tf.data.Dataset) -> int:
    """The `shuffle` transformations in a pipeline, those inside of functions not counted."""
    own = int(type(dataset).__name__ == "_ShuffleDataset")
    return own + sum(count_shuffles(part) for part in dataset._inputs())


def batch_size(dataset: tf.data.Dataset) -> int | None:
    """The rows of a full batch, as the last `batch` of the pipeline says; None where none does, or several say otherwise.

    What follows it may change the rows, so this is a guess.
    """
    for name in ("_batch_size", "_batch_sizes"):
        size = getattr(dataset, name, None)
        size = None if size is None else tf.get_static_value(size)
        if size is not None and size.ndim == 0:
            return int(size)
    sizes = {batch_size(part) for part in dataset._inputs()} - {None}
    return sizes.pop() if len(sizes) == 1 else None
