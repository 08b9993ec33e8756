"""`python -m unisono`: what is asked about a command is answered at once, without TensorFlow."""

import shutil
import socket
import subprocess
import sys

import pytest

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
    done = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"usage: python -m unisono {name}" in done.stdout


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{unisono.__version__}\n"


def test_profile_names_the_address_where_nobody_listens(tmp_path, capsys):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        port = held.getsockname()[1]
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


@pytest.mark.parametrize(
    "argv, said",
    [
        (
            ["launch", "no.py"],
            "unisono launch: there is no file 'no.py' to run; see `python -m unisono launch --help`.",
        ),
        (
            ["launch", "--workers", "two", "x.py"],
            "argument --workers: invalid whole number value: 'two'; see",
        ),
        (
            ["launch", "--log-dir", "/proc/no/x", __file__],
            "--log-dir: the folder '/proc/no/x' cannot be made (No such",
        ),
        (
            ["launch", "--log-dir", __file__, __file__],
            "argument --log-dir must be a folder. Received the file",
        ),
        (["backups"], "unisono backups: the following arguments are required: directory; see"),
    ],
)
def test_wrong_arguments_are_one_line(argv, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and said in error and error.count("\n") == 1


COMPLETED = [
    ("unisono la", "launch"),
    ("unisono --v", "--version"),
    ("unisono launch --rep", "--replicas-per-worker"),
    ("unisono launch --network h", "host"),
    ("unisono report runs/", ""),  # left to the shell, which knows files
]


def test_bash_completes_commands_options_and_values(capsys):
    assert main(["completion", "bash"]) == 0
    script = [capsys.readouterr().out]
    for line, _ in COMPLETED:
        words = line.split()
        script.append(f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _unisono; echo "${{COMPREPLY[*]}}"')
    done = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True)
    assert done.stdout.splitlines() == [wanted for _, wanted in COMPLETED], done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in COMMANDS:
        assert name in script
    assert "network" in script and "own host" in script
    if shutil.which(shell):
        done = subprocess.run([shell, "-c", script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
