"""Every example runs, in a process of its own, in a folder of its own."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
QUIET = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg"}
QUIET.pop("TF_CONFIG", None)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, cwd=tmp_path, env=QUIET, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    printed = done.stdout
    if name == "digits_mirrored.py":
        accuracy = float(re.search(r"test accuracy\s+([0-9.]+)", printed)[1])
        assert accuracy >= 0.98
        assert (tmp_path / "demo" / "digits.png").stat().st_size > 10_000
    if name == "fine_tune.py":
        assert "the frozen body is unchanged" in printed


def test_examples_are_all_listed():
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in EXAMPLES if f"({name})" not in listed] == []
