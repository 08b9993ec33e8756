"""Errors that end the trace of a step: those of the user's code, and bugs of this library."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator

from ....distribute.workers.error_text import is_own_file, is_unisono_file
from ..program import NotPartitioned


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """A block that runs the user's code for batches of any size, which may need a known one (`range(x.shape[0])`).

    Its error becomes `NotPartitioned` with the line. The step on one replica has the true size: there the same error is the
    user's, and ends the fit. An error is a bug, and passes, if a line of this library ended in it that does not raise it.
    """
    try:
        yield
    except NotPartitioned:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1]
        if is_unisono_file(last.filename) and not (last.line or "").strip().startswith("raise"):
            raise
        lines = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames if is_own_file(f.filename)]
        where = f", raised in {lines[-1]}" if lines else ""
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise NotPartitioned(f"for batches of any size its code ends in {text}{where}") from error


def name_bug(error: Exception) -> str:
    """The reason for one replica where the partition failed for an error of this library."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    where = f"{os.path.basename(last.filename)}:{last.lineno}"
    return f"its partition ended in {text} ({where}). This is a bug in Unisono: please report it with the log"
