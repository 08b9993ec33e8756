"""How all workers resume from one backup."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...distribute.workers.agreement import gather_json, place_among_workers
from ..fit_state import FitState
from ..safe_file import SaveError
from ..trained_model import CompiledModel
from .container import WRONG, BackupMismatchError, DamagedFileError, NewerFormatError
from .shard_files import own_are_enough
from .store import Found, read_checked
from .variable_state import variables_of

# That every worker raises where the chief does. An OSError of another kind becomes a SaveError.
_ERRORS = (NewerFormatError, BackupMismatchError, SaveError, OSError)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, what a content of a wrong kind raises becomes a DamagedFileError that names the backup."""
    try:
        yield
    except BackupMismatchError:
        raise
    except WRONG as error:
        raise DamagedFileError(
            f"{path} cannot be resumed: putting its content back failed ({type(error).__name__}: {str(error)[:200]!a}). "
            "Move the file away to resume from an older one, if no callback of yours has raised this."
        ) from error


def on_all_workers(
    model: CompiledModel, chief: bool, directory: Path, find: Callable[[Callable[[Path], Any]], Found]
) -> Found:
    """The backup that the chief finds, on every worker: all must resume from the same step, or raise the same error.

    `find` is called on the chief, with a function that reads the content of a backup.
    """
    strategy = model.distribute_strategy
    if not chief:
        answer = gather_json(None, strategy)[0]
        if "error" in answer:
            raise next(kind for kind in _ERRORS if kind.__name__ == answer["kind"])(answer["error"])
        path = directory / answer["name"] if answer["name"] else None
        return Found(path, content_for(model, path) if path else None, [])
    try:
        found = find(functools.partial(content_for, model))
    except _ERRORS as error:
        kind = next(kind for kind in _ERRORS if isinstance(error, kind))
        gather_json({"error": str(error), "kind": kind.__name__}, strategy)
        raise
    gather_json({"name": found.path.name if found.path else None}, strategy)
    return found


def content_for(model: CompiledModel, path: Path) -> Any:
    """The content of a backup, as far as this worker restores it: only its own shards where they are enough."""
    place = place_among_workers(model.distribute_strategy)
    content = read_checked(path, skips_worker=lambda worker: worker != place[0])[1]
    if "parts" in content and not own_are_enough(content, variables_of(model), place):
        content = read_checked(path)[1]
    return content


def build_optimizer(model: CompiledModel, scope: Any) -> None:
    """Makes the optimizer state that a backup is restored into. Our `fit` makes it before it begins."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not model.built:
        raise RuntimeError(
            "BackupAndRestore outside of our fit needs a model that is built, and compiled with the optimizer of the "
            "loop: build it first, or call unisono.adopt(model) and train with its `fit`. Received: the model "
            f"{model.name!r}, "
            f"{'not compiled' if optimizer is None else 'not built'}."
        )
    if not optimizer.built:
        with scope:
            optimizer.build(model.trainable_weights)


def announce(path: Path, content: dict[str, Any], fit_state: FitState, left_over: list[str]) -> None:
    """One line: from where, to where, and how the position in the data was found."""
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
