"""Runs more power cuts and forged files than `tests/unit/test_broken_files.py`, from seeds that you choose."""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import broken_files
from backup_content import SUMMARY, backup_content

from unisono.callbacks.backup.files import container


def main() -> int:
    """Ends with an error at the first case that loses data.

        python -m benchmarks.broken_files --seeds 20000 --first 1000

    Every call of a save and of a checkpoint fails once with each error. Power is cut after every call, with `--seeds
    / 100` choices of lost writes. `--seeds` forged files are read.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20_000, help="number of forged files")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    os.fsync = lambda descriptor: (
        None
    )  # the test records flushed data, so waiting for the real disk is unnecessary
    good = io.BytesIO()
    container.write(good, backup_content(), {**SUMMARY, "time": 1e9})
    few = range(arguments.first, arguments.first + max(1, arguments.seeds // 100))
    many = range(arguments.first, arguments.first + arguments.seeds)
    for what, run in [
        ("failing calls of a save", lambda f: broken_files.every_call(f, broken_files.failing_save)),
        (
            "failing calls of a checkpoint",
            lambda f: broken_files.every_call(f, broken_files.failing_checkpoint),
        ),
        ("calls of saves at which power was cut", lambda f: broken_files.power_cuts(f, few)),
        (
            "calls of checkpoints at which power was cut",
            lambda f: broken_files.power_cuts_of_checkpoints(f, few),
        ),
        ("forged files rejected", lambda f: broken_files.fuzz(f, good.getvalue(), many)),
    ]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            print(f"{run(folder)} {what}, {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
