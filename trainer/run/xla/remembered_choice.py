"""The choice of a backend, kept in UNISONO_CACHE_DIR for other processes that run the same steps."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib

import tensorflow as tf

from ....callbacks.trained_model import TrainedModel
from ....compat.keras_private.layers import layers_of
from ....distribute.storage import local_path
from ....optimizers.held_optimizers import optimizers_of
from ...inputs import Source
from ..loops.compiled import GRAPH, XLA


def file_of(model: TrainedModel, training: bool, source: Source) -> pathlib.Path | None:
    """The file of the steps of a model on an input, in the folder UNISONO_CACHE_DIR; None where that is not set."""
    folder = os.environ.get("UNISONO_CACHE_DIR")
    if not folder:
        return None
    facts = [
        [[str(v.shape), str(v.dtype)] for v in model.variables],
        [type(layer).__name__ for layer in layers_of(model)],
        [type(o).__name__ for o in optimizers_of(model)],
        [str(source.spec), type(source).__name__, source.batch_size, source.usual_batch_size],
        [] if training else ["evaluation"],
        [type(model.distribute_strategy).__name__, model.distribute_strategy.num_replicas_in_sync],
        [tf.__version__, os.cpu_count()],
        [tf.config.experimental.get_device_details(d) for d in tf.config.list_physical_devices()],
    ]
    name = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]
    return local_path("UNISONO_CACHE_DIR", folder) / f"way-{name}.json"


def remembered(file: pathlib.Path | None) -> tuple[str | None, str]:
    """The backend that an earlier process has chosen, with the reason; None where there is none."""
    try:
        kept = json.loads(file.read_text()) if file is not None else {}
        return (kept["way"], str(kept["reason"])) if kept.get("way") in (GRAPH, XLA) else (None, "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, ""


def remember(file: pathlib.Path | None, backend: str | None, reason: str) -> None:
    """Stores a choice for later processes."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"way": backend, "reason": reason}))
        partial.replace(file)
