"""Every example runs, in a process of its own, in a folder of its own."""

import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What they learn is not looked at.
SHORT = ("fine_tune.py", "gan.py", "numpy_training.py", "text_classifier.py")
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name, forked, tmp_path):
    program = ROOT / "examples" / name
    words = [HERE / "run_short.py", program] if name in SHORT else [program]
    printed = forked.run(*words, folder=tmp_path)
    if name == "digits_mirrored.py":
        accuracy = float(re.search(r"test accuracy\s+([0-9.]+)", printed)[1])
        assert accuracy >= 0.98
        assert (tmp_path / "demo" / "digits.png").stat().st_size > 10_000
    if name == "fine_tune.py":
        assert "the frozen body is unchanged" in printed
    if name == "digits_custom_loop.py":
        assert "0.0e+00 between uninterrupted and resumed" in printed


def test_examples_are_all_listed():
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in EXAMPLES if f"({name})" not in listed] == []
