"""Model.fit: the step, its compilation, and the loop over epochs."""

from . import replacements as _replacements  # noqa: F401  (replaces functions of Keras)
from .model import Model, Sequential, adopt, clone_model, load_model, model_from_json, synchronize_batch_norm
from .replica_step import replica_step
from .step.global_loss import rowwise

__all__ = [
    "Model",
    "Sequential",
    "adopt",
    "clone_model",
    "load_model",
    "model_from_json",
    "replica_step",
    "rowwise",
    "synchronize_batch_norm",
]


def __dir__() -> list[str]:
    return __all__
