"""The documentation is correct: every block runs, and every command, link and file that a page names exists."""

import importlib.util
import pathlib
import re
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from blocks import blocks_of  # noqa: E402

EVERY = [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))]
DESIGN = sorted(page for page in EVERY if "/design/" in page)
PAGES = sorted({*EVERY} - {*DESIGN})


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


WITH_CODE = [page for page in PAGES if any(b.language == "python" for b in blocks_of(text_of(page)))]


@pytest.mark.process
@pytest.mark.parametrize("page", WITH_CODE)
def test_blocks_of_a_page_run_one_after_another(page, forked, tmp_path):
    printed = forked.run(HERE / "run_page.py", page, folder=tmp_path)
    assert ": ok" in printed or ": not run: " in printed


def test_output_of_a_page_is_compared_without_times_and_last_digits():
    from run_page import same_output

    bar = "1/1 ━ 3 ms 2 ms/step 9k samples/s - loss: 0.521\n"
    assert same_output(f"a\r{bar}", "a\n1/1 ━ 4.1 s 7 us/step 12.1k samples/s - loss: 0.522")
    assert same_output(f"a\nb\nc\n{bar}", f"a\n...\n{bar}") and same_output(f"b\n{bar}", f"...\n{bar}")
    for other in ("loss: 0.6", "lass: 0.521", "loss: 0.521 b"):
        assert not same_output(bar, bar.replace("loss: 0.521", other))
    assert not same_output(f"a\n{bar}", f"b\n...\n{bar}") and not same_output(bar, f"a\n...\n{bar}")


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_exist(page):
    from unisono.commands import COMMANDS

    makefile = text_of("Makefile")
    for block in blocks_of(text_of(page)):
        for command in re.findall(r"python -m unisono (\w+)", block.code):
            assert command in COMMANDS
            assert importlib.util.find_spec(f"unisono.commands.{command}") is not None
        for target in re.findall(r"^\$? ?make (\w+)", block.code, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_copied_commands_have_no_prompt(page):
    """GitHub copies a whole block; the site leaves out prompts and output, but only of `console` blocks."""
    for block in blocks_of(text_of(page)):
        lines = [line for line in block.code.splitlines() if line.strip()]
        prompts = [line for line in lines if line.startswith("$ ")]
        assert not prompts or (block.language == "console" and len(prompts) < len(lines)), (page, block.line)


OWN = ("unisono", "trainer", "callbacks", "state", "mixed_precision", "optimizers", "distribute", "compat")
OWN += ("tests", "benchmarks")
NAMES = {path.name for folder in (*OWN, "examples") for path in (ROOT / folder).rglob("*.py")}
READERS_OWN = ("trainer.py", "callbacks.py", "tests/single/trainer/test_my_layer.py", "train.py")


@pytest.mark.parametrize("page", [*PAGES, *DESIGN])
def test_files_that_a_page_names_exist(page):
    text = text_of(page)
    missing = [
        path
        for path in re.findall(rf"\b(?:{'|'.join(OWN)})/[\w/*-]+\.pyi?\b", text)
        if not list(ROOT.glob(path)) and path not in READERS_OWN
    ]
    files = re.findall(r"`(\w+\.py)`", text)
    assert missing + [name for name in files if name not in NAMES and name not in READERS_OWN] == []


def test_kubernetes_example_contains_the_network_policy():
    policy, job = (text_of(f"docs/deploy/{name}.yaml") for name in ("network-policy", "kubernetes"))
    assert policy.partition("spec:")[2].strip() in job
