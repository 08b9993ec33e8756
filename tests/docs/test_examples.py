"""Every example runs in a separate process and folder."""

import importlib.util
import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Their training results are not checked.
SHORT = ("fine_tune.py", "numpy_training.py", "text_classifier.py")
LAUNCHED = ("large_embedding.py", "two_workers.py")  # run by tests/workers/test_launched_examples.py
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))

FEWER = {  # arguments that shorten an example, which would take up to two minutes otherwise
    "accumulated_loop.py": ["--groups", "2"],
    "gan.py": ["--steps", "2", "--epochs", "1"],
    "gpt.py": ["--steps", "4"],
    "image_classifier.py": ["--steps", "4", "--epochs", "2"],
    "lora.py": ["--rows", "100", "--epochs", "1"],
    "pipeline.py": ["--steps", "2", "--epochs", "1"],
    "search.py": ["--trials", "2", "--epochs", "1"],
    "sharded_state.py": ["--steps", "2", "--epochs", "1"],
    "vae.py": ["--steps", "35"],
}
NEEDS = {"lora.py": "keras_hub"}
SAID = {
    "accumulated_loop.py": "16 calls with  16 samples: 1 updates, 1 skipped, loss scale 2048",
    "fine_tune.py": "the frozen body is unchanged",
    "digits_custom_loop.py": "0.0e+00 between uninterrupted and resumed",
    "gan.py": "digits out of noise",
    "gpt.py": "the weights of both runs are bitwise identical",
    "image_classifier.py": "of 450 unseen digits",
    "lora.py": "the pretrained weights are unchanged",
    "pipeline.py": "schedule 1f1b, 8 micro-batches of 16 samples",
    "search.py": "demo/search/report.html: 2 training runs",
    "sharded_state.py": "largest difference of a weight, saved and loaded: 0.0e+00",
    "vae.py": "two digits that nobody wrote",
}


@pytest.mark.short("digits_mir*", "vae.py", "search.py", "sharded_state.py", "image*", "numpy*")
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
    assert [name for name in EXAMPLES if f'--8<-- "examples/{name}"' not in site] == []
