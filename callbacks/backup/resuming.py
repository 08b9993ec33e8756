"""How all workers resume from one backup, and warnings where a resumed run could not have the same bits."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...distribute.workers.agreement import gather_json, place_among_workers
from ...state.trained_model import FitState, TrainedModel
from ...state.variable_state import variables_of
from ..safe_file import SaveError
from .files.container import BackupMismatchError, NewerFormatError
from .files.owner import FolderOwner
from .files.shard_files import own_are_enough
from .files.store import BackupStore, Found, read_checked

# Those that every worker raises if the chief does; any other OSError is a SaveError elsewhere.
_ERRORS = (NewerFormatError, BackupMismatchError, SaveError)


def on_all_workers(model: TrainedModel, chief: bool, store: BackupStore, owner: FolderOwner) -> Found:
    """Return the backup that the chief finds to all workers: all resume there or raise the same error."""
    strategy = model.distribute_strategy
    if not chief:
        answer: dict[str, Any] = gather_json(None, strategy)[0] or {"name": ""}  # it trains alone: no file
        if "error" in answer:
            raise next(kind for kind in _ERRORS if kind.__name__ == answer["kind"])(answer["error"])
        path = store.directory / answer["name"] if answer["name"] else None
        return Found(path, content_for(model, path) if path else None, [])
    try:
        found = _find_backup(store, owner, functools.partial(content_for, model))
    except (*_ERRORS, OSError) as error:
        kind = next((kind for kind in _ERRORS if isinstance(error, kind)), SaveError)
        gather_json({"error": str(error), "kind": kind.__name__}, strategy)
        raise
    gather_json({"name": found.path.name if found.path else None}, strategy)
    return found


def _find_backup(store: BackupStore, owner: FolderOwner, read: Callable[[Path], Any]) -> Found:
    """Take the directory and look for a backup. Context: the chief."""
    store.prepare()
    owner.acquire()
    store.remove_leftovers()
    found = store.newest_good(read)
    if found.path is None and (others := store.others()):
        print(
            f"{store.directory} also contains backups of other `fit` calls of this script, such as {others[0].name}, "
            f"which this call (number {store.fit}) ignores.",
            flush=True,
        )
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
    found = [f"Resuming from {path} at epoch {calendar['epoch'] + 1}, {where}", f"position in the data: {by}"]
    print(f"{'; '.join([*found, *left_over])}.", flush=True)
