"""`python -m unisono`: what is asked about a command is answered at once, without TensorFlow."""

import subprocess
import sys

import pytest

import unisono
from unisono.commands import COMMANDS, main
from unisono.distribute.workers.addresses import free_ports

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


def test_profile_names_the_address_where_nobody_listens(tmp_path, capsys):
    (port,) = free_ports(1)
    assert main(["profile", "--service", f"127.0.0.1:{port}", "--log-dir", str(tmp_path / "logs")]) == 1
    error = capsys.readouterr().err
    assert (
        f"nobody listens at 127.0.0.1:{port}: check that fit runs there" in error and error.count("\n") == 1
    )


def test_profile_refuses_a_file_as_its_folder(tmp_path, capsys):
    (tmp_path / "logs").write_text("")
    with pytest.raises(SystemExit):
        main(["profile", "--service", "127.0.0.1:1", "--log-dir", str(tmp_path / "logs")])
    assert "--log-dir must be a folder. Received the file" in capsys.readouterr().err
