"""Errors that end the trace of a step: those of the user's code, and bugs of this library."""

import contextlib
import dis
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from ....compat.keras_private.functional import first_error
from ....distribute.workers.error_text import is_own_file, is_unisono_file
from ..program import NotPartitioned


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Run the user's code, in the block, for batches of any size; it may need a known one (`range(x.shape[0])`).

    Turn an error into `NotPartitioned` with the line of user code that led to it. The step on one replica has the true size;
    an error that it raises again ends the fit. An error that a file of this library caused without a `raise` is a bug, and
    is not converted.
    """
    try:
        yield
    except NotPartitioned:
        raise
    except Exception as error:
        if _is_bug(error):
            raise
        line = _innermost_line(error, is_own_file)
        where = f", raised in {line}" if line else ""
        text = f"{type(error).__name__}: {first_error(error)}".partition("\n")[0]
        raise NotPartitioned(f"traced for batches of any size, its code raises {text}{where}") from error


def name_bug(error: Exception) -> str:
    """Return the reason for running on one replica after a bug of this library in the partition."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    where = _innermost_line(error, is_unisono_file)
    return f"partitioning it raised {text} ({where}). This is a bug in Unisono: please report it with the log"


def _is_bug(error: Exception) -> bool:
    """Return whether a line of this library ended in the error, and does not raise it."""
    trace: Any = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return is_unisono_file(code.co_filename) and dis.opname[code.co_code[trace.tb_lasti]] != "RAISE_VARARGS"


def _innermost_line(error: Exception, of: Callable[[str], bool]) -> str:
    """Return the innermost line in files of this kind, as `file.py:41`; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames if of(f.filename)]
    return lines[-1] if lines else ""
