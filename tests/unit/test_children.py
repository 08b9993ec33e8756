"""What programs that tests start import."""

import subprocess
import sys
from pathlib import Path

from children import ROOT

import unisono


def test_started_program_imports_the_tested_tree_whatever_is_installed(tmp_path):
    elsewhere, packages = tmp_path / "elsewhere", tmp_path / "packages"
    (elsewhere / "unisono").mkdir(parents=True)
    (elsewhere / "unisono" / "__init__.py").touch()
    packages.mkdir()
    (packages / "editable.pth").write_text(f"{elsewhere}\n")
    program = tmp_path / "program.py"
    program.write_text(
        f"import importlib.util, site\nsite.addsitedir({str(packages)!r})\n"
        "print(importlib.util.find_spec('unisono').origin)\n"
    )
    done = subprocess.run([sys.executable, "-S", program], cwd=tmp_path, capture_output=True, text=True)
    tested = ROOT / "unisono" / "__init__.py"
    assert Path(done.stdout.strip()) == Path(unisono.__file__) == tested, done.stderr
