"""Make and execute a notebook of every example: `make notebooks`. The programs are the source.

A program becomes one cell for its imports and one for each function or class; the last one calls `main`. A program that the
launcher starts is written to a file by the notebook and started as its docstring says. A last cell shows the picture that a
program draws, which is also copied to docs/assets. Notebooks that have the cells of their program and outputs stay as they
are; `--all` executes them again, and names execute only those.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import tomllib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
NOTEBOOKS = ROOT / "docs" / "notebooks"  # below docs, so that the site has them too
ASSETS = ROOT / "docs" / "assets"
# What programs draw, below the folder where a notebook runs.
PICTURES = {
    "curve_of_one_device": "demo/curve.svg",
    "ddpm": "demo/ddpm/ddpm.png",
    "digits_mirrored": "demo/digits.png",
    "gan": "demo/gan.png",
    "pipeline": "demo/pipeline.svg",
    "vae": "demo/vae.png",
}
# A line of TensorFlow's, of this process or of a worker; it may begin behind a bar.
_NOTICE = re.compile(
    r"^(?:.*(?:INFO|WARNING):tensorflow:|(?:\[[\w-]+\] +)?(?:WARNING: All log messages|[IWE]\d{4} )).*\n",
    re.MULTILINE,
)


def notebook(name: str, source: str, repository: str | None) -> dict[str, Any]:
    """Return the notebook of a program, without outputs.

    Args:
        name: of the file, "gpt.py".
        source: the text of the program.
        repository: where Unisono can be installed from with git; None: it must be installed already.
    """
    module = ast.parse(source)
    title, _, rest = (ast.get_docstring(module) or name).partition("\n")
    commands = re.findall(r"^    (python -m unisono launch .*)$", rest, re.MULTILINE)
    cells = [_text(f"# {title}\n{rest}".strip()), *_installation(repository)]
    if commands:
        cells += [_code(f"%%writefile {name}\n{source.strip()}"), *(_code(f"!{each}") for each in commands)]
    else:
        cells += map(_code, _parts(source, module))
    if picture := PICTURES.get(pathlib.Path(name).stem):
        display = "SVG" if picture.endswith(".svg") else "Image"
        cells.append(_code(f"from IPython.display import {display}\n\n{display}({picture!r})"))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def without_outputs(whole: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook as it is before it is executed."""
    cleared = {"outputs": [], "execution_count": None}
    return {**whole, "cells": [cell | cleared if "outputs" in cell else cell for cell in whole["cells"]]}


def execute(whole: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells, run from top to bottom in a folder and a kernel of its own.

    Installations are skipped, because the kernel imports Unisono from this clone.
    """
    import nbclient
    import nbformat

    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    os.environ |= {
        "PATH": path,
        "PYTHONPATH": python_path,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "UNISONO_CACHE": "",
    }
    node = nbformat.reads(json.dumps(whole), as_version=4)
    client = nbclient.NotebookClient(
        node,
        timeout=900,
        record_timing=False,
        skip_cells_with_tag="installation",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    done = json.loads(nbformat.writes(node))
    for cell in done["cells"]:
        if "outputs" in cell:
            cell["outputs"] = _as_in_a_terminal(cell["outputs"])
    return done | {"metadata": whole["metadata"]}


def _as_in_a_terminal(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join what a cell printed, without TensorFlow's notices; of a line stays what follows its last carriage return."""
    printed = "".join("".join(each["text"]) for each in outputs if each.get("name") == "stdout")
    printed = _NOTICE.sub("", printed).replace(f"{ROOT}{os.sep}", "")
    lines = [re.sub(r".*\r(?=.)", "", line.rstrip("\r")).rstrip() for line in printed.split("\n")]
    stream = {"name": "stdout", "output_type": "stream", "text": "\n".join(lines).splitlines(keepends=True)}
    others = [
        each
        for each in outputs
        if each["output_type"] == "error" or any(each.get("data", {}).get("text/plain", []))
    ]
    return [*([stream] if printed else []), *others]


def _parts(source: str, module: ast.Module) -> list[str]:
    """The program below its docstring, cut before every function and class; its arguments are the default ones."""
    lines = source.splitlines()
    body = module.body[1:]
    starts = [body[0].lineno]
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            starts.append(min([node.lineno, *(each.lineno for each in node.decorator_list)]))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            starts.append(node.lineno)
    ends = [*starts[1:], len(lines) + 1]
    parts = ["\n".join(lines[start - 1 : end - 1]).strip() for start, end in zip(starts, ends)]
    return [
        *parts[:-1],
        f"import sys\n\nsys.argv = [{'example'!r}]  # those of the kernel are not for it\n{parts[-1]}",
    ]


def _installation(repository: str | None) -> list[dict[str, Any]]:
    if repository is None:
        return [_text('Needs Unisono: `pip install ".[demo]"` in a clone of the repository.')]
    return [_code(f'%pip install --quiet "unisono[demo] @ git+{repository}"')]


def _text(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": "", "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": "",
        "execution_count": None,
        "metadata": {"tags": ["installation"]} if text.startswith("%pip") else {},
        "outputs": [],
        "source": text.splitlines(keepends=True),
    }


def all_notebooks() -> dict[pathlib.Path, dict[str, Any]]:
    """Return every notebook by its path, without outputs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project.get("urls", {}).get("Repository")
    return {
        NOTEBOOKS / f"{path.stem}.ipynb": notebook(path.name, path.read_text(encoding="utf-8"), repository)
        for path in sorted(EXAMPLES.glob("*.py"))
    }


def main() -> None:
    """Execute the notebooks that are old, and remove those of examples that are no more."""
    parser = argparse.ArgumentParser(description="make and execute the notebooks of examples")
    parser.add_argument("names", nargs="*", help="of examples to execute again, such as gpt")
    parser.add_argument("--all", action="store_true", help="execute every notebook again")
    options = parser.parse_args()
    notebooks = all_notebooks()
    NOTEBOOKS.mkdir(exist_ok=True)
    for path in set(NOTEBOOKS.glob("*.ipynb")) - set(notebooks):
        path.unlink()
    for path, whole in notebooks.items():
        if path.stem in options.names or (
            not options.names and (options.all or not _is_current(path, whole))
        ):
            with tempfile.TemporaryDirectory() as folder:
                done = execute(whole, pathlib.Path(folder))
                if picture := PICTURES.get(path.stem):
                    shutil.copy(pathlib.Path(folder) / picture, ASSETS)
            path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{path}: executed", flush=True)


def _is_current(path: pathlib.Path, whole: dict[str, Any]) -> bool:
    """Whether a notebook has the cells of its program, and outputs."""
    if not path.exists():
        return False
    written = json.loads(path.read_text(encoding="utf-8"))
    return without_outputs(written) == whole and any(cell.get("execution_count") for cell in written["cells"])


if __name__ == "__main__":
    main()
