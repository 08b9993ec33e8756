"""How a resume is settled between workers, and told."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...distribute.workers.agreement import gather_json, place_among_workers
from ..fit_state import FitState
from ..safe_file import SaveError
from ..trained_model import CompiledModel
from .container import WRONG, DamagedFileError, NewerFormatError
from .shard_files import own_are_enough
from .snapshot import BackupMismatchError
from .store import BackupStore, read_for
from .variable_state import variables_of


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


class Found(NamedTuple):
    """What was found in a directory of backups."""

    path: Path | None  # of the newest good backup
    content: Any
    problems: list[str]  # a sentence for each newer one that was skipped


def on_all_workers(
    model: CompiledModel, chief: bool, directory: Path, find: Callable[[Callable[[Path], Any]], Found]
) -> Found:
    """What the chief finds in `directory`, on every worker: all must resume from the same step, or raise the same error.

    `find` is called on the chief, with what reads the content of a backup.
    """
    strategy = model.distribute_strategy
    if not chief:
        answer = gather_json(None, strategy)[0]
        if "error" in answer:
            raise (NewerFormatError if answer["newer"] else SaveError)(answer["error"])
        path = directory / answer["name"] if answer["name"] else None
        return Found(path, content_for(model, path) if path else None, [])
    try:
        found = find(functools.partial(content_for, model))
    except (OSError, NewerFormatError) as error:
        gather_json({"error": str(error), "newer": isinstance(error, NewerFormatError)}, strategy)
        raise
    gather_json({"name": found.path.name if found.path else None}, strategy)
    return found


def content_for(model: CompiledModel, path: Path) -> Any:
    """The content of a backup, as far as this worker puts it back: of shards its own, if it can do with them."""
    place = place_among_workers(model.distribute_strategy)
    content = read_for(path, place[0])[1]
    if "parts" in content and not own_are_enough(content, variables_of(model), place):
        content = read_for(path)[1]
    return content


def build_slots(model: CompiledModel, scope: Any) -> None:
    """Makes the slots that a backup is put back into. In a `fit` of ours they are made before it begins."""
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


def tell_of_others(store: BackupStore) -> None:
    """Says that there are backups, but of other fits than this one. Context: the chief."""
    others = store.others()
    if others:
        print(
            f"{store.directory} has backups of other fits of this script, such as {others[0].name}. This is its fit "
            f"{store.fit} in this directory, and they are left for theirs.",
            flush=True,
        )


def warn_of_problems(problems: list[str], found: bool, directory: Path) -> None:
    """Warns of backups that are skipped, and where none is left (`found` is False) that training starts anew."""
    for problem in problems:
        warnings.warn(f"{problem} It is skipped.")
    if problems and not found:
        warnings.warn(f"No backup in {directory} is good: training starts from the beginning.")
