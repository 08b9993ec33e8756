"""`python -m unisono`: what is asked about a command is answered at once, without TensorFlow."""

import subprocess
import sys

import unisono
from unisono.commands import COMMANDS, main

ALL_HELP = """
import contextlib, sys
from unisono.commands import COMMANDS, main
for argv in [], ["--help"], ["--version"], ["no-such"], *([name, "--help"] for name in COMMANDS):
    with contextlib.suppress(SystemExit):
        main(argv)
sys.exit(" ".join({"tensorflow", "keras", "numpy"} & set(sys.modules)) or 0)
"""


def test_help_of_every_command_imports_no_tensorflow():
    done = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"usage: python -m unisono {name}" in done.stdout


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{unisono.__version__}\n"
