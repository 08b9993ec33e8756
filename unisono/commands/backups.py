"""`python -m unisono backups DIR`: which backups and checkpoints there are, and whether they are intact."""

from .parser import Parser, columns, place

ALL_GOOD, NONE_GOOD, NO_DIRECTORY, SOME_GOOD = 0, 1, 2, 3
PARSER = Parser(
    "backups",
    "List backups and checkpoints, and check every byte of them. Nothing is changed.",
    examples=["backup", "/data/run7/checkpoints"],
    exit_codes={
        ALL_GOOD: "every file is good",
        NONE_GOOD: "no file is good",
        NO_DIRECTORY: "an argument is wrong, or there is no such directory",
        SOME_GOOD: "some files are good; others are damaged, missing or of another version",
    },
)
PARSER.add_argument("directory", type=place, help="directory passed to BackupAndRestore or ModelCheckpoint")


def main(argv: list[str]) -> int:
    """Print one line for each file after checking every byte of it; return the status that `--help` explains."""
    directory = PARSER.parse_args(argv).directory
    from ..distribute.objects import is_remote, size_of

    if not is_remote(directory) and not directory.is_dir():
        print(f"There is no directory {directory}.")
        return NO_DIRECTORY
    from ..callbacks import (  # imports TensorFlow, which `--help` need not wait for
        list_backups,
        verify_checkpoint,
    )
    from ..callbacks.backup.files.owner import read_owner
    from ..callbacks.monitoring.formatting import moment
    from ..callbacks.saving.checkpoint_files import checkpoints_in
    from ..distribute.hardware.device_memory import in_words

    if (owner := read_owner(directory)) is not None:
        ended = "" if owner.process and owner.process.runs() else ", which may have exited"
        print(f"The directory is in use by {owner}{ended}.")
    backups, checkpoints = list_backups(directory), checkpoints_in(directory)
    if not backups and not checkpoints:
        print(f"There are no backups in {directory}.")
        return NONE_GOOD
    states = [info.status for info in backups]
    rows: list[tuple[str, ...]] = [("backup", "epoch", "step", "total steps", "time", "size", "state")]
    for info in backups:
        when = "" if info.time is None else moment(info.time)
        epoch = None if info.epoch is None else info.epoch + 1  # as in the lines of `fit`
        numbers = ("" if n is None else str(n) for n in (epoch, info.step, info.total_steps))
        rows.append((info.path.name, *numbers, when, in_words(info.size), info.status))
    if backups:
        print(*columns(rows), *filter(None, (info.problem for info in backups)), sep="\n")
    for path in checkpoints:
        try:
            state = "good" if verify_checkpoint(path) else "damaged"
        except FileNotFoundError:
            state = "missing"
        except OSError:  # it, or its checksum, is not a plain file, or cannot be read
            state = "damaged"
        size = in_words(size_of(path)) if state != "missing" else ""
        print(f"{path.name if path.name.isprintable() else ascii(path.name)}  {size}  {state}")
        states.append(state)
    good = states.count("good")
    return ALL_GOOD if good == len(states) else SOME_GOOD if good else NONE_GOOD
