"""Every example is also a notebook: the same program, split into cells, linked from the site and the list of examples."""

import ast
import json
import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
made = runpy.run_path(str(ROOT / ".ci" / "notebooks.py"), run_name="notebooks")
with_colab = runpy.run_path(str(ROOT / ".ci" / "site_hooks.py"), run_name="site_hooks")["with_colab"]
NOTEBOOKS = made["all_notebooks"]()


def code_of(text):
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def test_notebooks_are_those_of_the_examples():
    written = {path: path.read_text(encoding="utf-8") for path in made["NOTEBOOKS"].glob("*.ipynb")}
    assert written == NOTEBOOKS, "run `make notebooks`"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_the_whole_program(path):
    program = (ROOT / "examples" / f"{path.stem}.py").read_text(encoding="utf-8")
    cells = code_of(NOTEBOOKS[path])
    if cells[0].startswith("%%writefile"):
        first, *commands = cells
        assert first == f"%%writefile {path.stem}.py\n{program.strip()}"
        assert commands and all(command.startswith("!python -m unisono launch") for command in commands)
        return
    statements = [ast.dump(node) for cell in cells for node in ast.parse(cell).body]
    added = [ast.dump(node) for node in ast.parse("import sys\nsys.argv = ['example']").body]
    wanted = [ast.dump(node) for node in ast.parse(program).body[1:]]
    found, expected = ([each for each in code if each not in added] for code in (statements, wanted))
    assert found == expected
    assert added[1] in statements


def test_notebook_installs_from_the_repository_where_it_is_known():
    text = made["notebook"]("a.py", '"""A title."""\nprint(1)\n', "https://example.org/unisono")
    assert code_of(text)[0] == '%pip install --quiet "unisono[demo] @ git+https://example.org/unisono"'


def test_notebooks_are_linked():
    site = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        assert f"[notebook](notebooks/{path.name})" in site and f"(../docs/notebooks/{path.name})" in listed


@pytest.mark.parametrize(
    "repository, linked", [("https://github.com/a/b", True), ("https://example.org/b", False)]
)
def test_site_links_colab_where_the_repository_is_on_github(repository, linked):
    page = with_colab("see the [notebook](notebooks/gpt.ipynb).", repository)
    link = "[in Colab](https://colab.research.google.com/github/a/b/blob/HEAD/docs/notebooks/gpt.ipynb)"
    assert (link in page) == linked and page.startswith("see the [notebook](notebooks/gpt.ipynb)")
