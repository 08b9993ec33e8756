"""Every example runs in a separate process and folder, and is also a notebook: the same program, split into cells."""

import ast
import importlib.util
import json
import pathlib
import re
import runpy

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Their training results are not checked.
SHORT = ("curve_of_one_device.py", "fine_tune.py", "numpy_training.py", "text_classifier.py")
LAUNCHED = ("large_embedding.py", "two_workers.py")  # run by tests/workers/test_launched_examples.py
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))

FEWER = {  # arguments that shorten an example, which would take up to two minutes otherwise
    "accumulated_loop.py": ["--groups", "2"],
    "ddpm.py": ["--steps", "2", "--epochs", "1"],
    "gan.py": ["--steps", "2", "--epochs", "1"],
    "gpt.py": ["--steps", "4"],
    "grain_position.py": ["--steps", "6"],
    "hugging_face.py": ["--samples", "200", "--epochs", "1"],
    "image_classifier.py": ["--steps", "4", "--epochs", "2"],
    "lora.py": ["--texts", "100", "--epochs", "1"],
    "pipeline.py": ["--steps", "2", "--epochs", "1"],
    "resnet50.py": ["--images", "16", "--batch-size", "4", "--steps", "2", "--epochs", "1"],
    "search.py": ["--trials", "2", "--epochs", "1"],
    "sharded_state.py": ["--steps", "2", "--epochs", "1"],
    "vae.py": ["--epochs", "1"],
}
NEEDS = {"grain_position.py": "grain", "hugging_face.py": "datasets", "lora.py": "keras_hub"}
# Two lines of these are marked with what they are for real data or devices.
MADE_REAL = ("ddpm", "gan", "grain_position", "hugging_face", "large_embedding", "lora", "resnet50")
SAID = {
    "accumulated_loop.py": "16 calls with  16 samples: 1 updates, 1 skipped, loss scale 2048",
    "curve_of_one_device.py": "of their length away from one device's",
    "fine_tune.py": "the frozen body is unchanged",
    "ddpm.py": "digits out of noise",
    "digits_custom_loop.py": "0.0e+00 between uninterrupted and resumed",
    "gan.py": "digits out of noise",
    "gpt.py": "the weights of both runs are bitwise identical",
    "grain_position.py": "the weights of both runs are bitwise identical",
    "hugging_face.py": "of 50 unseen digits",
    "image_classifier.py": "of 450 unseen digits",
    "lora.py": "the pretrained weights are unchanged",
    "pipeline.py": "schedule 1f1b, 8 micro-batches of 16 samples",
    "resnet50.py": "23,595,908 weights, 2 updates",
    "search.py": "demo/search/report.html: 2 training runs",
    "sharded_state.py": "largest difference of a weight, saved and loaded: 0.0e+00",
    "vae.py": "two digits that nobody wrote",
}


@pytest.mark.short("curve*", "vae.py", "search.py", "sharded_state.py", "image*", "numpy*")
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in LAUNCHED])
def test_example_runs(name, forked, tmp_path):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}: pip install '.[tools]'")
    program = ROOT / "examples" / name
    words = [HERE / "run_short.py", program] if name in SHORT else [program, *FEWER.get(name, [])]
    printed = forked.run(*words, folder=tmp_path)
    assert SAID.get(name, "") in printed
    if name == "digits_mirrored.py":
        accuracy = float(re.search(r"test accuracy\s+([0-9.]+)", printed)[1])
        assert accuracy >= 0.98
        assert (tmp_path / "demo" / "digits.png").stat().st_size > 10_000


def test_examples_are_all_listed():
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in EXAMPLES if f"({name})" not in listed] == []
    site = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert [name for name in EXAMPLES if f"\n[examples/{name}](../examples/{name})\n" not in site] == []


@pytest.mark.parametrize("name", MADE_REAL)
def test_example_with_small_data_marks_the_two_lines_that_make_it_real(name):
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert len(re.findall(r"^ *# real: \S", source, re.MULTILINE)) == 2 and 'marked with "real:"' in " ".join(
        source.split()
    )


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in MADE_REAL if name != "lora"])  # which would load a preset
def test_example_runs_with_its_real_lines(name, forked, tmp_path):
    needed = NEEDS.get(f"{name}.py", "json")
    pytest.importorskip(needed, reason=f"needs {needed}: pip install '.[tools]'")
    forked.run(
        HERE / "run_real.py", ROOT / "examples" / f"{name}.py", *FEWER.get(f"{name}.py", []), folder=tmp_path
    )


made = runpy.run_path(str(ROOT / ".ci" / "notebooks.py"), run_name="notebooks")
hooks = runpy.run_path(str(ROOT / ".ci" / "site_hooks.py"), run_name="site_hooks")
NOTEBOOKS = made["all_notebooks"]()


def code_of(notebook):
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_notebooks_are_those_of_the_examples_with_outputs():
    written = {
        path: json.loads(path.read_text(encoding="utf-8")) for path in made["NOTEBOOKS"].glob("*.ipynb")
    }
    assert {p: made["without_outputs"](each) for p, each in written.items()} == NOTEBOOKS, (
        "run `make notebooks`"
    )
    for path, whole in written.items():
        kinds = [each["output_type"] for cell in whole["cells"] for each in cell.get("outputs", [])]
        assert kinds and "error" not in kinds, f"run `make notebooks`: {path.name} has the outputs {kinds}"


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path, tmp_path):
    for module in ("nbclient", "ipykernel", NEEDS.get(f"{path.stem}.py", "json")):
        pytest.importorskip(module, reason=f"needs {module}: pip install '.[tools]'")
    done = made["execute"](NOTEBOOKS[path], tmp_path)
    printed = "".join(
        line for cell in done["cells"] for each in cell.get("outputs", []) for line in each.get("text", [])
    )
    assert SAID.get(f"{path.stem}.py", "") in printed or f"{path.stem}.py" in FEWER
    assert "\r" not in printed


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
    if picture := made["PICTURES"].get(path.stem):
        assert cells[-1].endswith(f"({picture!r})") and (made["ASSETS"] / pathlib.Path(picture).name).exists()
        added += [ast.dump(node) for node in ast.parse(cells[-1]).body]
    wanted = [ast.dump(node) for node in ast.parse(program).body[1:]]
    found, expected = ([each for each in code if each not in added] for code in (statements, wanted))
    assert found == expected
    assert added[1] in statements


def test_notebook_installs_from_the_repository_where_it_is_known():
    notebook = made["notebook"]("a.py", '"""A title."""\nprint(1)\n', "https://example.org/unisono")
    assert code_of(notebook)[0] == '%pip install --quiet "unisono[demo] @ git+https://example.org/unisono"'


def test_notebooks_are_linked():
    site = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        assert f"[notebook](notebooks/{path.name})" in site and f"(../docs/notebooks/{path.name})" in listed


@pytest.mark.parametrize(
    "repository, linked", [("https://github.com/a/b", True), ("https://example.org/b", False)]
)
def test_site_links_colab_where_the_repository_is_on_github(repository, linked):
    page = hooks["with_colab"]("see the [notebook](notebooks/gpt.ipynb).", repository)
    link = "[in Colab](https://colab.research.google.com/github/a/b/blob/HEAD/docs/notebooks/gpt.ipynb)"
    assert (link in page) == linked and page.startswith("see the [notebook](notebooks/gpt.ipynb)")


def test_site_shows_alerts_of_github_as_admonitions():
    text = "> [!CAUTION]\n> **Ports are open.** Close\n> them.\n\nNext.\n"
    assert hooks["show_alerts"](text) == '!!! danger "Ports are open"\n\n    Close\n    them.\n\nNext.\n'
