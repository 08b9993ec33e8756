"""One trace for batches of two sizes: whether compiled functions leave the number of samples open.

The last batch of a pass is smaller where the batch size does not divide the samples. Then a compiled function with fixed
batch size is traced twice, and in a short fit the second trace costs as much as all steps. A function with an open batch
size, as in Keras, serves both sizes, and takes a few microseconds more for each step. So a short fit uses an open one. A
long fit uses one for full batches, and one for the rest.
"""

from __future__ import annotations

from ....callbacks.trained_model import TrainedModel
from . import predict_loop

FEWEST_STEPS = 400  # for which steps are compiled for a fixed batch size


def open_sizes(model: TrainedModel, steps: int | None, predicting: bool = False) -> str:
    """`Source.open_sizes` for a pass or a fit of `steps` steps (None: not known).

    A loop that predicts many batches in one call must know the batch size. With `jit_compile=True` XLA compiles for each
    size in any case. The stages of a pipeline split batches of known size.
    """
    if model.jit_compile or model._pipeline is not None:
        return "no"
    fewest = predict_loop.FEWEST_STEPS if predicting else FEWEST_STEPS
    return "all" if steps is not None and steps < fewest else "last"
