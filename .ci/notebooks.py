"""Makes a notebook of every example: `make notebooks`. The programs are the source; a test tells when the notebooks are old.

A program becomes one cell for its imports and one for each function or class; the last one calls `main`. A program that the
launcher starts is written to a file by the notebook and started as its docstring says. Outputs: docs/examples.md.
"""

from __future__ import annotations

import ast
import json
import pathlib
import re
import tomllib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
NOTEBOOKS = ROOT / "docs" / "notebooks"  # below docs, so that the site has them too


def notebook(name: str, source: str, repository: str | None, output: str = "") -> str:
    """The notebook of a program, as JSON.

    Args:
        name: of the file, "gpt.py".
        source: the text of the program.
        repository: where Unisono can be installed from with git; None: it must be installed already.
        output: what the program prints; after each `$ command`, what that command prints.
    """
    module = ast.parse(source)
    title, _, rest = (ast.get_docstring(module) or name).partition("\n")
    commands = re.findall(r"^    (python -m unisono launch .*)$", rest, re.MULTILINE)
    cells = [_text(f"# {title}\n{rest}".strip()), *_installation(repository)]
    if commands:
        cells.append(_code(f"%%writefile {name}\n{source.strip()}"))
        printed = dict(re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", output, re.MULTILINE))
        cells += [_code(f"!{command}", printed.get(command, "")) for command in commands]
    else:
        *parts, last = _parts(source, module)
        cells += [*map(_code, parts), _code(last, output)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


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


def _code(text: str, output: str = "") -> dict[str, Any]:
    stream = {"name": "stdout", "output_type": "stream", "text": output.splitlines(keepends=True)}
    return {
        "cell_type": "code",
        "id": "",
        "execution_count": None,
        "metadata": {},
        "outputs": [stream] if output else [],
        "source": text.splitlines(keepends=True),
    }


def outputs_of_examples() -> dict[str, str]:
    """Return what each program prints, as the site shows it, by its path."""
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:text|console)\n(.*?)```\n\n\?\?\? example \"(.*?)\"", page, re.DOTALL)
    return {path: output for output, path in blocks}


def all_notebooks() -> dict[pathlib.Path, str]:
    """What every notebook must contain, by its path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project.get("urls", {}).get("Repository")
    outputs = outputs_of_examples()
    return {
        NOTEBOOKS / f"{path.stem}.ipynb": notebook(
            path.name, path.read_text(encoding="utf-8"), repository, outputs.get(f"examples/{path.name}", "")
        )
        for path in sorted(EXAMPLES.glob("*.py"))
    }


def main() -> None:
    """Writes all notebooks, and removes those of examples that are no more."""
    notebooks = all_notebooks()
    NOTEBOOKS.mkdir(exist_ok=True)
    for path in set(NOTEBOOKS.glob("*.ipynb")) - set(notebooks):
        path.unlink()
    for path, text in notebooks.items():
        path.write_text(text, encoding="utf-8")
    print(f"{NOTEBOOKS}: {len(notebooks)} notebooks")


if __name__ == "__main__":
    main()
