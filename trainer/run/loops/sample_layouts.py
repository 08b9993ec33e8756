"""One trace for batches of two sizes: whether compiled functions leave the number of samples open."""

from __future__ import annotations

from ....callbacks.trained_model import TrainedModel
from . import predict_loop

FEWEST_STEPS = 400  # for which steps are compiled for a fixed batch size


def open_sizes(model: TrainedModel, steps: int | None, predicting: bool = False) -> str:
    """`Source.open_sizes` for a pass or a fit of `steps` steps (None: not known).

    With a fixed batch size a smaller last batch is a second trace, which in a short fit costs as much as all steps. An
    open one, as in Keras, costs a few microseconds more for each step. So a long fit uses a fixed size for full
    batches.

    A loop that predicts many batches in one call must know the batch size. With `jit_compile=True` XLA compiles for each
    size in any case. The stages of a pipeline split batches of known size.
    """
    if model.jit_compile or model._pipeline is not None:
        return "no"
    fewest = predict_loop.FEWEST_STEPS if predicting else FEWEST_STEPS
    return "all" if steps is not None and steps < fewest else "last"
