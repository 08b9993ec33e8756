"""Write the page of one run, or of several side by side, from their JSON lines."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...distribute.arguments import shown
from ...distribute.objects import is_remote
from ...distribute.storage import local_path, storage_path
from ..safe_file import check_overwrite
from .charts import check_installed
from .page import PAGE, render
from .runs import Run, find_runs


def compare_reports(paths: Any, output: str | os.PathLike[str] | None = None) -> Path:
    """Write a page about every run in `paths`, the best first, as `python -m unisono report` does.

    Args:
        paths: a path or a list of paths, of folders with the `.jsonl` files of `TrainingReport` or of such files; local
            or in a store, such as `s3://bucket/runs`.
        output: local path of the page; None: `report.html` in the first folder, or in the current one for a store.

    Returns:
        The path of the page.

    Raises:
        ValueError: a path does not exist, or is no report.
        OSError: there are no numbers, or `output` cannot be written or is a file that is no report.

    Examples:
        >>> page = unisono.callbacks.compare_reports(["report.jsonl"], "both.html")
    """
    return write_page(paths, output)[0]


def write_page(paths: Any, output: Any, argument: str = "`output`") -> tuple[Path, int]:
    """Write the page; return its path and the number of runs. `argument` is the name of `output` in an error."""
    check_installed()
    if isinstance(paths, str | os.PathLike) or is_remote(paths):
        paths = [paths]
    if not isinstance(paths, list | tuple) or not paths:
        raise ValueError(f"`paths` must be a path or a list of paths. Received: {shown(paths)}")
    places = [storage_path("paths", each) for each in paths]
    page: Any = local_path("output", output, optional=True)
    for place in places:
        if not is_remote(place) and not place.exists():
            raise ValueError(f"`paths`: {place} does not exist.")
    runs = [run for place in places for run in find_runs(place)]
    if not runs:
        names = ", ".join(map(str, places))
        raise FileNotFoundError(
            f"there are no numbers of a training run in {names}: TrainingReport writes them."
        )
    if page is None:
        first = places[0]
        page = (Path() if is_remote(first) else first if first.is_dir() else first.parent) / "report.html"
    check_overwrite(argument, page, PAGE)
    data = _render_or_name_the_run(runs)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_bytes(data)
    except OSError as error:
        raise OSError(f"{page} cannot be written ({error.strerror}): choose another output.") from error
    return page, len(runs)


def _render_or_name_the_run(runs: Sequence[Run]) -> bytes:
    """Render the page, or raise a ValueError that names the file whose lines say something else."""
    try:
        return render(runs).encode(errors="replace")
    except Exception as error:  # the lines may say anything
        if len(runs) == 1:
            said = f"{runs[0].path} is not a report of TrainingReport, or was changed"
            raise ValueError(f"{said} ({type(error).__name__}: {str(error)[:100]!a}).") from None
        for run in runs:
            _render_or_name_the_run([run])
        raise
