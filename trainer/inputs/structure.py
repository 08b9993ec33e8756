"""The structure of a batch. A step gets what Keras gives it for the same input, with the rows of its replica.

- Arrays: x itself (a list or tuple of arrays as `(x,)`), with targets `(x, y)`, with weights `(x, y, sample_weight)`.
- Whatever gives batches itself: the batches as they are, of any structure.

Keras' own steps take apart what Keras' `unpack_x_y_sample_weight` does; a step of the user's own takes what it likes.
"""

from __future__ import annotations

from typing import Any

import keras


def pack(x: Any, y: Any, sample_weight: Any) -> Any:
    """Arrays as one batch. Weights without targets are left out, as in Keras."""
    return keras.utils.pack_x_y_sample_weight(x, y, sample_weight if y is not None else None)


def is_standard(batch: Any) -> bool:
    """Whether Keras' own steps take the batch, or the spec of one: anything but a tuple of more than three."""
    return not isinstance(batch, tuple | list) or 1 <= len(batch) <= 3


def unpack(batch: Any) -> tuple[Any, Any, Any]:
    """`(x, y, sample_weight)` of a batch or the spec of one; a structure that is not Keras' is all x."""
    return keras.utils.unpack_x_y_sample_weight(batch) if is_standard(batch) else (batch, None, None)


def named_parts(batch: Any) -> list[tuple[str, Any]]:
    """The parts of a batch with the names that messages have for them."""
    if isinstance(batch, tuple):
        names = (
            ("x", "y", "sample_weight") if is_standard(batch) else map("data[{}]".format, range(len(batch)))
        )
        return list(zip(names, batch))
    return [("x", batch)]
