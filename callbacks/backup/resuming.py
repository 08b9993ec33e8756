"""How all workers resume from one backup, and warnings where a resumed run could not have the same bits."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...compat.keras_private.variables import raw_value
from ...compat.tensorflow_graphs.graphs import find_drawing_operations, operations_are_deterministic
from ...distribute.hardware.devices import is_gpu
from ...distribute.replicas import copies_of
from ...distribute.workers.agreement import gather_json, place_among_workers
from ...state.random_state import find_generators
from ...state.trained_model import FitState, TrainedModel
from ...state.variable_state import find_held, variables_of
from ..safe_file import SaveError
from .callback_state import name_callbacks
from .files.container import BackupMismatchError, NewerFormatError
from .files.shard_files import own_are_enough
from .files.store import Found, read_checked

_ONE_WAY = (
    "The training data comes from a Python generator, which cannot be rewound: a resumed run draws from a new "
    "generator and skips the batches already used, which is right only if the new one yields the same batches. Use a "
    "keras.utils.PyDataset or a tf.data.Dataset to resume bit-for-bit in any case."
)
# Those that every worker raises if the chief does; any other OSError is a SaveError elsewhere.
_ERRORS = (NewerFormatError, BackupMismatchError, SaveError)


def on_all_workers(
    model: TrainedModel, chief: bool, directory: Path, find: Callable[[Callable[[Path], Any]], Found]
) -> Found:
    """Return the backup that `find(read)` finds on the chief to all workers: all resume there or raise the same error."""
    strategy = model.distribute_strategy
    if not chief:
        answer: dict[str, Any] = gather_json(None, strategy)[0] or {"name": ""}  # it trains alone: no file
        if "error" in answer:
            raise next(kind for kind in _ERRORS if kind.__name__ == answer["kind"])(answer["error"])
        path = directory / answer["name"] if answer["name"] else None
        return Found(path, content_for(model, path) if path else None, [])
    try:
        found = find(functools.partial(content_for, model))
    except (*_ERRORS, OSError) as error:
        kind = next((kind for kind in _ERRORS if isinstance(error, kind)), SaveError)
        gather_json({"error": str(error), "kind": kind.__name__}, strategy)
        raise
    gather_json({"name": found.path.name if found.path else None}, strategy)
    return found


def content_for(model: TrainedModel, path: Path) -> Any:
    """Return the content of a backup, as far as this worker restores it: only its own shards where they are enough."""
    place = place_among_workers(model.distribute_strategy)
    content = read_checked(path, only=place[0])[1]
    if "parts" in content and not own_are_enough(content, variables_of(model), place):
        content = read_checked(path)[1]
    return content


def build_optimizer(model: TrainedModel, scope: Any) -> None:
    """Create the optimizer state into which a backup is restored. Our `fit` creates it before it begins."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not model.built:
        raise RuntimeError(
            "BackupAndRestore in a custom loop or Keras' `fit` needs a model that is built, and compiled with the loop's "
            "optimizer: build it first, or call unisono.adopt(model) and train with its `fit`. Received: the model "
            f"{model.name!r}, {'not compiled' if optimizer is None else 'not built'}."
        )
    if not optimizer.built:
        with scope:
            optimizer.build(model.trainable_weights)


def announce(path: Path, content: dict[str, Any], fit_state: FitState, left_over: list[str]) -> None:
    """Print from which backup a run resumes, at which step, and how the position in the data was found."""
    ways = {
        "index": "by index",
        "iterator": "by the iterator's own checkpoint",
        "skip": "by skipping the batches before it",
    }
    calendar, by = content["calendar"], getattr(fit_state.source, "resume_by", "")
    if by == "iterator" and "iterator" not in content["workers"][0]["source"]:
        by = "skip"  # between passes, or where the checkpoint would have been incomplete
    where = "in its validation" if calendar["in_validation"] else f"step {calendar['step']}"
    by = "of your loop" if fit_state.custom_loop else ways.get(by, "by the source")
    lost = f"; no callback for the state of {', '.join(left_over)}" if left_over else ""
    print(
        f"Resuming from {path} at epoch {calendar['epoch'] + 1}, {where}; position in the data: {by}{lost}.",
        flush=True,
    )


def warn_if_inexact(model: TrainedModel, fit_state: FitState) -> None:
    """Warn of the first reason why this training cannot be resumed exactly, if there is one."""
    validation = _why_inexact(fit_state.validation) or ""
    reasons = (
        _why_inexact(fit_state.source),
        validation.replace("x is", "validation_data is", 1),
        _cut(fit_state.validation),
        _explain_shared_generator(model, fit_state),
        _adds_in_any_order(model),
    )
    if found := next(filter(None, reasons), None):
        warnings.warn(found, stacklevel=2)


def warn_of_own_states(model: TrainedModel) -> None:
    """Warn where the steps, which have been compiled, draw from random operations that nothing can save."""
    graph = getattr(model.train_function, "graph", lambda: None)()
    names = [] if graph is None else find_drawing_operations(graph)
    if names:
        warnings.warn(
            f"A resumed run cannot be exact, because TensorFlow cannot save the state of a random operation ({names[0]}): "
            "draw with keras.random and a SeedGenerator, or from a tf.random.Generator.",
            stacklevel=2,
        )


def _adds_in_any_order(model: TrainedModel) -> str | None:
    """Return the warning if the model is on a GPU, whose kernels add in varying order."""
    on_gpu = any(is_gpu(getattr(copies_of(v)[0], "device", "")) for v in model.weights[:1])
    if operations_are_deterministic() or not on_gpu:
        return None
    return (
        "Some operations add in a different order each time on a GPU: a resumed run cannot be exact; call "
        "tf.config.experimental.enable_op_determinism() before you create the model."
    )


def _why_inexact(source: Any) -> str | None:
    if source is None:
        return None
    return getattr(source, "inexact", None) if getattr(source, "rewinds", True) else _ONE_WAY


def _cut(validation: Any) -> str | None:
    """Return the warning if every validation pass leaves a pipeline that has drawn further than it was read."""
    steps = validation.position.given_steps if getattr(validation, "owned", ()) else None
    if steps is None:
        return None
    return (
        f"validation_data is a tf.data pipeline that draws from a generator, and validation_steps ({steps}) ends each pass "
        "while it is read ahead: a resumed run cannot be exact; use Dataset.take instead of validation_steps."
    )


def _explain_shared_generator(model: TrainedModel, fit_state: FitState) -> str | None:
    """Return the warning if an input and something else draw from one generator."""
    inputs = [("x", fit_state.source), ("validation_data", fit_state.validation)]
    owners = [(n, {id(raw_value(each)) for each in getattr(source, "owned", ())}) for n, source in inputs]
    if not any(owned for _, owned in owners):
        return None
    callbacks = name_callbacks(fit_state.callbacks)
    variables = {v.name: v for group in variables_of(model).values() for v in group if v.name is not None}
    drawn_by_model = {**find_generators(find_held(model)), **variables}
    users = [("the model", drawn_by_model), ("a callback", find_generators(callbacks))]
    both = [("x", "validation_data", "one generator")] * bool(owners[0][1] & owners[1][1])
    shared = [
        (place, user, name)
        for place, owned in owners
        for user, drawn in users
        for name, each in drawn.items()
        if id(raw_value(each)) in owned
    ]
    if not (found := shared + both):
        return None
    place, user, name = found[0]
    return (
        f"{place} and {user} draw from the same random numbers ({name}), in an order that depends on how far the input is "
        "read ahead: a resumed run cannot be exact; use a separate generator for each."
    )
