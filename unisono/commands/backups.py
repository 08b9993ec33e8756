"""`python -m unisono backups DIR`: which backups and checkpoints there are, and whether they are intact."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .parser import Parser, columns, local

if TYPE_CHECKING:
    from ..callbacks import BackupInfo

ALL_GOOD, NONE_GOOD, NO_DIRECTORY, SOME_GOOD = 0, 1, 2, 3
PARSER = Parser(
    "backups",
    "List backups and checkpoints, and check every byte of them. Nothing is changed.",
    examples=["backup", "/data/run7/checkpoints"],
    exit_codes={
        ALL_GOOD: "every file is good",
        NONE_GOOD: "no file is good",
        NO_DIRECTORY: "an argument is wrong, or there is no such directory",
        SOME_GOOD: "some files are good; others are damaged, missing or of a newer version",
    },
)
PARSER.add_argument(
    "directory", type=local, help="the directory given to BackupAndRestore or ModelCheckpoint"
)


def main(argv: list[str]) -> int:
    """Prints one line for each file after checking every byte of it; returns the status that `--help` explains."""
    directory = PARSER.parse_args(argv).directory
    if not directory.is_dir():
        print(f"There is no directory {directory}.")
        return NO_DIRECTORY
    from ..callbacks import list_backups  # imports TensorFlow, which `--help` need not wait for
    from ..callbacks.backup.files.owner import read_owner
    from ..callbacks.saving.checkpoint_files import checkpoints_in
    from ..distribute.hardware.device_memory import in_words

    owner = read_owner(directory)
    if owner is not None:
        ended = "" if owner.process and owner.process.runs() else ", which may have ended"
        print(f"The directory is used by {owner}{ended}.")
    backups = list_backups(directory)
    checkpoints = {path: _state(path) for path in checkpoints_in(directory)}
    if not backups and not checkpoints:
        print(f"There are no backups in {directory}.")
        return NONE_GOOD
    if backups:
        header = ("backup", "epoch", "step", "total steps", "time", "size", "state")
        problems = filter(None, (info.problem for info in backups))
        print(*columns([header, *map(_row, backups)]), *problems, sep="\n")
    for path, state in checkpoints.items():
        size = in_words(path.lstat().st_size) if state != "missing" else ""
        print(f"{path.name if path.name.isprintable() else ascii(path.name)}  {size}  {state}")
    states = [*(info.status for info in backups), *checkpoints.values()]
    good = states.count("good")
    return ALL_GOOD if good == len(states) else SOME_GOOD if good else NONE_GOOD


def _state(path: Path) -> str:
    """Whether a checkpoint is "good", "damaged" or "missing"."""
    from ..callbacks.saving.checkpoint_files import verify_checkpoint

    try:
        return "good" if verify_checkpoint(path) else "damaged"
    except FileNotFoundError:
        return "missing"
    except OSError:  # it, or its checksum, is not a plain file, or cannot be read
        return "damaged"


def _row(info: BackupInfo) -> tuple[str, ...]:
    from ..distribute.hardware.device_memory import in_words

    when = "" if info.time is None else f"{datetime.datetime.fromtimestamp(info.time):%Y-%m-%d %H:%M:%S}"
    epoch = None if info.epoch is None else info.epoch + 1  # as in the lines of `fit`
    numbers = ("" if n is None else str(n) for n in (epoch, info.step, info.total_steps))
    return (info.path.name, *numbers, when, in_words(info.size), info.status)
