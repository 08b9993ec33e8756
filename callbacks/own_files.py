"""The files that a callback has made itself: the only ones that it may remove or overwrite."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import string
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .safe_file import SaveError, open_plain
from .sealed_file import is_sealed, remove_sealed, sum_of

# What a format such as `{epoch:03d}` or `{loss:.2e}` gives.
_NUMBER = r" *[-+]?(?:[0-9][0-9_,.]*(?:[eE][-+]?[0-9]+)?%?|nan|inf|NAN|INF) *"


_MOST_BYTES = 1 << 20  # that tell who wrote a file


def keep_others_file(argument: str, path: Path, is_own: Callable[[Path], bool]) -> None:
    """Refuses to overwrite a file that has content, and that the callback did not write.

    Args:
        argument: and the callback that it belongs to, for the message.
        path: of the file.
        is_own: whether the callback has written a plain file; a `ValueError` or an `OSError` is a no.

    Raises:
        SaveError: (an OSError) see above.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode) or not path.stat().st_size or is_own(path):
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, RecursionError):
        pass
    raise SaveError(
        errno.EEXIST,
        f"{argument} would overwrite {path}, which that callback did not write: move the file, or choose another place.",
    )


def begins_with_json(path: Path, keys: Iterable[str], lines: bool = True) -> bool:
    """Whether the first line of a file, or all of it, is a JSON object with these keys."""
    with open_plain(path) as stream:
        text = stream.readline(_MOST_BYTES) if lines else stream.read(_MOST_BYTES)
    found = json.loads(text)
    return isinstance(found, dict) and found.keys() >= set(keys)


class Saved(NamedTuple):
    """A file that a callback has made."""

    name: str  # relative to the callback's folder
    value: float | None  # of the log that is monitored
    digest: str | None  # its checksum as it was written; None where this process writes no files


class OwnFiles:
    """Names below the folder of one pattern such as `runs/{epoch:03d}.keras`. Owns no state.

    A list of files may come from a backup, which may have been copied from another training or be damaged on purpose. So a
    file is removed only if its name lies below the present folder and is one that the pattern gives, no link leads out of
    the folder, and its checksum is the one that was written.
    """

    def __init__(self, pattern: str) -> None:
        parts = Path(pattern).parts
        fixed = next((i for i, part in enumerate(parts) if "{" in part), len(parts) - 1)
        fixed = min(fixed, len(parts) - 1)
        self.folder, self._depth = Path(*parts[:fixed]), len(parts) - fixed
        self._names = re.compile("/".join(_pattern_of(part) for part in parts[fixed:]))

    def keep_others(self, argument: str) -> None:
        """Refuses names that a file already has that was not saved by `write_sealed`; raises as `keep_others_file`."""
        for path in self.folder.glob("/".join("*" * self._depth)):
            if self._names.fullmatch(path.relative_to(self.folder).as_posix()):
                keep_others_file(argument, path, is_sealed)

    def name(self, path: str) -> str:
        """The name of a file that the pattern has given."""
        return Path(os.path.relpath(path, self.folder)).as_posix()

    def known(self, state: Any) -> list[Saved]:
        """The entries of a saved list that may be files of this callback."""
        entries = state if isinstance(state, list | tuple) else ()
        return [Saved(*entry) for entry in entries if self._is_entry(entry)]

    def remove(self, saved: Saved) -> None:
        """Removes a file, if it is the one that was made."""
        path = self.folder / saved.name
        if saved.digest and self._is_inside(path) and sum_of(path) == saved.digest:
            remove_sealed(path)

    def _is_entry(self, entry: Any) -> bool:
        if not isinstance(entry, list | tuple) or len(entry) != 3:
            return False
        name, value, digest = entry
        number = value is None or (isinstance(value, float | int) and not isinstance(value, bool))
        return number and isinstance(name, str) and isinstance(digest, str | None) and self._may_be_own(name)

    def _may_be_own(self, name: str) -> bool:
        return ".." not in name.split("/") and self._names.fullmatch(name) is not None

    def _is_inside(self, path: Path) -> bool:
        """Whether it is a plain file, and no link on the way leads out of the folder."""
        try:
            plain = stat.S_ISREG(path.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return plain and path.parent.resolve().is_relative_to(self.folder.resolve())


def _pattern_of(part: str) -> str:
    """The regular expression of the names that one part of a path with placeholders can give."""
    fields: Iterable[tuple[str, str | None, Any, Any]] = string.Formatter().parse(part)
    return "".join(re.escape(text) + ("" if field is None else _NUMBER) for text, field, *_ in fields)
