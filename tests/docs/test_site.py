"""The site builds, and its search, run as a browser runs it, leads what people type to the page with the answer."""

import json
import os
import pathlib
import subprocess
import sys
import tomllib

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FIRST = 3  # pages, and sections of a page, that a reader sees without scrolling
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="needs mkdocs-material: pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="needs mkdocstrings: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder


def test_site_builds_strictly(site):
    assert "Unisono" in (site / "index.html").read_text(encoding="utf-8")
    parts = {"roadmap": "Slower than it should be", "changelog": "Unreleased"}
    parts |= {"contributing": "The testers", "security": "What is protected"}
    for name, part in parts.items():
        assert part in (site / name / "index.html").read_text(encoding="utf-8")
    reference = (site / "reference" / "models" / "index.html").read_text(encoding="utf-8")
    assert 'id="unisono.Model.fit"' in reference
    assert "global batch, over all replicas" in reference and "load_<wbr>model" in reference


@pytest.fixture(scope="module")
def hooks(program_of_ci):
    return program_of_ci("site_hooks")


def test_notebooks_are_pages_with_their_outputs_and_pictures(site, hooks):
    code = {"cell_type": "code", "outputs": []}
    cells = [
        {"cell_type": "markdown", "source": ["# A title.\n", "\n", "A text."]},
        {**code, "source": ["%%writefile a.py\n", "print(1)"]},
        {
            **code,
            "source": ["!python a.py"],
            "outputs": [{"output_type": "stream", "text": ["\x1b[1m1\x1b[0m\n"]}],
        },
        {**code, "source": ["Image('demo/a/b.png')"], "outputs": [{"output_type": "display_data"}]},
    ]
    shown = hooks.show_notebook({"cells": cells}, "a.ipynb").split("\n\n")
    assert shown[0] == "# A title" and "(a.ipynb)" in shown[1] and shown[2].strip() == "A text."
    assert shown[3:] == [
        '````python title="a.py"\nprint(1)\n````',
        "````sh\npython a.py\n````",
        "````text\n1\n````",
        "![What the program draws](../assets/b.png)",
    ]
    page = (site / "notebooks" / "gpt" / "index.html").read_text(encoding="utf-8")
    assert "the weights of both runs are bitwise identical" in page and 'download="gpt.ipynb"' in page
    examples = (site / "examples" / "index.html").read_text(encoding="utf-8")
    assert 'href="../notebooks/gpt/"' in examples and ".ipynb" not in examples


def test_program_that_needs_an_earlier_one_says_so(site, hooks):
    first, own, second = (
        f"```python\n{code}\n```\n" for code in ("import a.b\nc = 1", "def f(c): return c", "print(a, f)")
    )
    title = 'title="continues the program above"'
    assert hooks.mark_continued(first + own + second) == first + own + second.replace(
        "python", f"python {title}"
    )
    page = (site / "tutorials" / "first-model" / "index.html").read_text(encoding="utf-8")
    assert page.count('<span class="filename">continues the program above</span>') == 4  # of five programs
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'class="md-button md-button--primary" href="tutorials/first-model/"' in home


def test_search_leads_words_and_questions_to_their_answers(site):
    node = pytest.importorskip(
        "pyright.node", reason="needs pyright, which brings node: pip install '.[dev]'"
    )
    asked = tomllib.loads((HERE / "searched.toml").read_text(encoding="utf-8"))
    assert len(asked["questions"]) == 37
    places = {**asked["words"], **asked["questions"]}
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    index, script = site / "search" / "search_index.json", site / "assets" / "search.js"
    command = [str(path) for path in (HERE / "ask_search.js", worker, index, script)]
    done = node.run("node", *command, input=json.dumps([*places]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    lost = {query: found[query][:FIRST] for query in places if not leads_to(found[query], places[query])}
    assert not lost, "\n".join(f"{query}: {places[query]} not in {pages}" for query, pages in lost.items())


def leads_to(results, places):
    """Whether each place is among the first results: lists of the sections that match, one list for each page."""
    seen = {section for sections in results[:FIRST] for section in sections[:FIRST]}
    pages = {section.partition("#")[0] for section in seen}
    return all(place in (seen if "#" in place else pages) for place in places)


def test_search_reports_a_page_or_a_section_that_comes_too_late():
    results = [["a/", "a/#1", "a/#2", "a/#3"], ["b/#1"], ["c/"], ["d/"]]
    assert leads_to(results, ["a/#2", "b/", "c/"])
    assert not leads_to(results, ["a/#3"]) and not leads_to(results, ["d/"]) and not leads_to([], ["a/"])
