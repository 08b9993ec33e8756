"""One trace for batches of two sizes: whether the rows of a batch are left open in the compiled functions.

The last batch of a pass is smaller where the rows do not divide. Of compiled functions that know the rows of a batch
there are then two, and in a short fit the second costs as much as all steps. A function that does not know them, as none
of Keras' does, serves both, and takes a few microseconds more for each step. So a short fit has one that knows no rows. A
long one has one that knows the full batches, and one for what is left.
"""

from __future__ import annotations

from ...callbacks.trained_model import TrainedModel
from . import predict_loop

FEWEST_STEPS = 400  # for which steps are compiled for their rows


def open_rows(model: TrainedModel, steps: int | None, predicting: bool = False) -> str:
    """`Source.open_rows` for a pass or a fit of `steps` steps (None: not known).

    A loop that predicts many batches in one call must know their rows. With `jit_compile=True` XLA compiles for
    each size in any case. The stages of a pipeline cut batches of known rows.
    """
    if model.jit_compile or model._pipeline is not None:
        return "no"
    fewest = predict_loop.FEWEST_STEPS if predicting else FEWEST_STEPS
    return "all" if steps is not None and steps < fewest else "last"
