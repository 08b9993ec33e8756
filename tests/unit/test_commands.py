"""`python -m unisono`: help for a command is printed immediately, without loading TensorFlow."""

import os
import signal
import socket
import subprocess
import sys
import types

import pytest

import unisono
from unisono import commands
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
    assert done.stdout.count("\nexamples:\n") == done.stdout.count("\nexit codes:\n") == len(COMMANDS)


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{unisono.__version__}\n"


@pytest.mark.parametrize("lines", [1, 100_000])  # in the buffer at the end, or not
def test_output_whose_reader_has_ended_ends_the_command_quietly(lines, monkeypatch, capsys):
    def run(argv):
        print("a line\n" * lines)
        return 1

    monkeypatch.setattr(commands, "_module", lambda command: types.SimpleNamespace(main=run))
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["doctor"]) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("argv", [[], ["--help"], ["--version"]])
def test_help_whose_reader_has_ended_ends_quietly(argv):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "unisono", *argv]
    with open(writer, "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""


def test_output_that_cannot_be_written_is_one_line():
    command = [sys.executable, "-m", "unisono", "--help"]
    with open("/dev/full", "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "unisono: write error: No space left on device\n")


@pytest.mark.parametrize("given, used", [({}, "3"), ({"TF_CPP_MIN_LOG_LEVEL": "0"}, "0")])
def test_program_hides_messages_of_tensorflow_and_starts_others_with_the_flags_of_the_user(
    tmp_path, given, used
):
    program = (
        "import os; import unisono; from unisono.commands import main; main(); "
        "print(unisono._programs.why_off, os.environ.get('TF_XLA_FLAGS'), os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    other = ("TF_CPP_MIN_LOG_LEVEL", "TF_XLA_FLAGS")
    environ = {name: value for name, value in os.environ.items() if name not in other}
    environ["UNISONO_CACHE"] = str(tmp_path)
    command = [sys.executable, "-c", program, "--version"]
    done = subprocess.run(command, env={**environ, **given}, capture_output=True, text=True)
    assert done.stdout.split()[-2:] == ["None", used] and len(done.stdout.split()) == 3, done.stderr


_NOTICES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795949610.123456    7420 cudart_stub.cc:31] Could not find cuda drivers on your machine.
"""


@pytest.mark.parametrize(
    "given, command, ends, hides",
    [
        ({}, "backups", "os.abort()", True),
        ({}, "backups", "subprocess.Popen(['cat'], stdout=-3)", True),  # which holds stderr until our end
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, "backups", "0", False),
        ({}, "launch", "0", False),
    ],
)
def test_program_hides_notices_that_tensorflow_prints_whatever_the_level(given, command, ends, hides):
    program = f"""
import os, subprocess, sys, types
from unisono import commands
def main(rest):
    os.write(2, {_NOTICES!r}.encode() + b"E0000 an error\\n")
    print("rest", end="", file=sys.stderr)
    {ends}
    return 3
commands._module = lambda name: types.SimpleNamespace(main=main)
sys.exit(commands.main())
"""
    environ = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    argv = [sys.executable, "-c", program, command]
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w"):
        done = subprocess.run(argv, env={**environ, **given}, stdin=read, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ("" if hides else _NOTICES) + "E0000 an error\nrest"
    assert done.returncode == (-signal.SIGABRT if "abort" in ends else 3)


def test_profile_of_workers_that_have_nothing_to_trace_is_an_error_in_one_line(tmp_path, capsys, monkeypatch):
    def trace(*_, num_tracing_attempts):
        assert num_tracing_attempts == 1  # the worker may still write the profile of the first
        if ends:
            server.close()
        raise RuntimeError("UNAVAILABLE: No trace event was collected.")  # as TensorFlow 2.21 does

    monkeypatch.setattr("tensorflow.profiler.experimental.client.trace", trace)
    for ends in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            assert main(["profile", "--service", address, "--log-dir", str(tmp_path / "logs")]) == 1
        assert f"nothing was captured from {address}" in (said := capsys.readouterr().err)
        assert "UNAVAILABLE: No trace event was collected)" in said and "Traceback" not in said
        assert (f"fit has ended at {address}." if ends else "pass fewer --seconds") in said


def test_profile_names_the_address_where_nobody_listens(tmp_path, capsys):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, but not listening
        port = held.getsockname()[1]
        assert main(["profile", "--service", f"127.0.0.1:{port}", "--log-dir", str(tmp_path / "logs")]) == 1
    error = capsys.readouterr().err
    words = f"nothing listens at 127.0.0.1:{port}: check that fit runs there"
    assert words in error and error.count("\n") == 1


COMPLETED = [
    ("unisono la", ["launch"]),
    ("unisono --v", ["--version"]),
    ("unisono launch --rep", ["--replicas-per-worker"]),
    ("unisono launch --network h", ["host"]),
]


@pytest.mark.parametrize("line, completed", COMPLETED)
def test_argcomplete_completes_commands_options_and_values(line, completed, tmp_path):
    pytest.importorskip("argcomplete")
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    command = [sys.executable, "-m", "unisono"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)
    assert (done.returncode, answer.read_text().split()) == (0, completed), done.stderr
