"""Errors that end the trace of a step: those of the user's code, and bugs of this library."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from ....compat.keras_private.functional import first_error
from ....compat.wrong_use import WrongUse
from ....distribute.workers.error_text import is_own_file, is_unisono_file
from ..program import NotPartitioned


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Run the user's code, in the block, for batches of any size; it may need a known one (`range(x.shape[0])`).

    Turn an error into `NotPartitioned` with the line of user code that led to it. The step on one replica has the true size;
    an error that it raises again ends the fit. An error of a file of this library that is no `WrongUse` is a bug, and is not
    converted.
    """
    filters = [each for each in (keras.config, tf.debugging) if each.is_traceback_filtering_enabled()]
    for each in filters:  # else a function of ours that calls theirs can be the last frame
        each.disable_traceback_filtering()
    try:
        yield
    except Exception as error:
        if not isinstance(error, WrongUse) and is_unisono_file(_frames(error)[-1].filename):
            raise
        line = _innermost_line(error, is_own_file)
        where = f", raised in {line}" if line else ""
        text = f"{type(error).__name__}: {first_error(error)}".partition("\n")[0]
        raise NotPartitioned(f"traced for batches of any size, its code raises {text}{where}") from error
    finally:
        for each in filters:
            each.enable_traceback_filtering()


def name_bug(error: Exception) -> str:
    """Return the reason for running on one replica after a bug of this library in the partition."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    where = _innermost_line(error, is_unisono_file)
    return f"partitioning it raised {text} ({where}). This is a bug in Unisono: please report it with the log"


def _frames(error: Exception) -> traceback.StackSummary:
    return traceback.extract_tb(error.__traceback__)


def _innermost_line(error: Exception, of: Callable[[str], bool]) -> str:
    """Return the innermost line in files of this kind, as `file.py:41`; empty if there is none."""
    lines = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in _frames(error) if of(f.filename)]
    return lines[-1] if lines else ""
