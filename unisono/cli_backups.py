"""`python -m unisono backups DIR`: what backups and checkpoints there are, and which of them are whole."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from unisono.callbacks.backup.store import BackupInfo, list_backups
from unisono.callbacks.safe_file import SUM_SUFFIX, verify_sum

ALL_GOOD, NONE_GOOD, NO_DIRECTORY, SOME_GOOD = 0, 1, 2, 3


def main(argv: list[str]) -> int:
    """Prints one line for each file, every byte of which is checked. Nothing is changed.

    Args:
        argv: list of str; the arguments after `backups`.

    Returns:
        int; the exit status: 0 every file is good; 1 there is no good one; 2 there is no such directory; 3 there is
        a good one, but also one that is damaged, missing or of a newer version.
    """
    parser = argparse.ArgumentParser(
        prog="python -m unisono backups",
        description="List backups and checkpoints, and check every byte of them. Nothing is changed.",
        epilog="Exit status: 0 every file is good; 1 there is no good one; 2 there is no such directory; "
        "3 there is a good one, but also one that is damaged, missing or of a newer version.",
    )
    parser.add_argument("directory", type=Path, help="what was given to BackupAndRestore or ModelCheckpoint")
    directory = parser.parse_args(argv).directory
    if not directory.is_dir():
        print(f"{directory} is no directory.")
        return NO_DIRECTORY
    backups = list_backups(directory)
    sums = sorted(directory.glob(f"*{SUM_SUFFIX}"))
    if not backups and not sums:
        print(f"No backups in {directory}.")
        return NONE_GOOD
    good = _print_backups(backups) if backups else 0
    for path in (sum_file.with_name(sum_file.name.removesuffix(SUM_SUFFIX)) for sum_file in sums):
        whole = path.exists() and bool(verify_sum(path))
        size = _size(path.stat().st_size) if path.exists() else ""
        print(f"{path.name}  {size}  {'good' if whole else 'damaged' if path.exists() else 'missing'}")
        good += whole
    if good == len(backups) + len(sums):
        return ALL_GOOD
    return SOME_GOOD if good else NONE_GOOD


def _print_backups(backups: list[BackupInfo]) -> int:
    rows = [("backup", "epoch", "step", "total steps", "time", "size", "state")] + [
        _row(info) for info in backups
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    for info in backups:
        if info.problem:
            print(info.problem)
    return sum(info.status == "good" for info in backups)


def _row(info: BackupInfo) -> tuple[str, ...]:
    when = "" if info.time is None else f"{datetime.datetime.fromtimestamp(info.time):%Y-%m-%d %H:%M:%S}"
    numbers = ("" if n is None else str(n) for n in (info.epoch, info.step, info.total_steps))
    return (info.path.name, *numbers, when, _size(info.size), info.status)


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000  # pyright: ignore[reportAssignmentType]
    return ""
