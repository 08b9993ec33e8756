"""An input that can be read without a trace in the one that the user gave: for what only measures or tries."""

from __future__ import annotations

from typing import Any

import keras

from ...compat.datasets import copied_dataset
from .make_source import kind_of


def copied_input(x: Any, asked_by: str) -> Any:
    """`x`, or a copy, of which batches can be drawn while the state of `x` stays as it is.

    What `x` draws from random generators, the caller puts back.

    Args:
        x: any input that can be read again.
        asked_by: what needs it, for the message.

    Raises:
        ValueError: its batches can be drawn once only.
    """
    kind = kind_of(x)
    if kind in ("generator", "tf.distribute.DistributedDataset"):
        raise ValueError(
            f"{asked_by} needs an input that can be read without a trace, and a {kind} goes on where it was left: give "
            "arrays, a keras.utils.PyDataset, or a tf.data.Dataset."
        )
    if kind == "Keras data adapter":
        return copied_dataset(x.get_tf_dataset())
    if kind == "tf.data.Dataset":
        return copied_dataset(x)
    return _Items(x) if kind == "PyDataset" else x


class _Items(keras.utils.PyDataset):
    """The items of a PyDataset, which is not told that epochs begin and end."""

    def __init__(self, dataset: Any) -> None:
        names = ("workers", "use_multiprocessing", "max_queue_size")
        super().__init__(**{name: getattr(dataset, name) for name in names if hasattr(dataset, name)})
        self._dataset = dataset

    @property
    def num_batches(self) -> int | None:
        """As the dataset says."""
        return self._dataset.num_batches

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        return self._dataset[number]
