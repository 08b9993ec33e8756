"""Every command on malformed files and invalid numbers: status 2, one line, never blocking."""

from __future__ import annotations

import json
import os

import pytest

from unisono.callbacks.report import charts
from unisono.callbacks.report.page import render
from unisono.callbacks.report.runs import find_runs
from unisono.commands import main

BEGIN = {
    **{"event": "begin", "time": 100.0, "title": "t", "summary": "s", "configuration": {"epochs": 1}},
    **{"model": {"name": "m", "trainable parameters": 3}, "strategy": {"replicas": 1}},
    **{"machine": {"host": "h"}, "versions": {}, "environment": {}},
}
NUMBERS = {"epoch": 0, "step": 2, "steps_per_epoch": 2, "logs": {"loss": 0.5}, "within": {}}
NUMBERS["learning_rate"] = 0.1
WORKER = {"steps": 2, "seconds": {"compute": 1.0}, "memory": {"host": 1}, "waited": [0.1]}
EPOCH = {
    **{"event": "epoch", "time": 101.0, **NUMBERS, "gradient_norm": 1.0, "steps": 2, "rows_per_step": 4},
    **{"elapsed": 1.0, "report_seconds": 0.1, "workers": [WORKER]},
}
END = {"event": "end", "time": 102.0, "how": "finished"}
GOOD = [BEGIN, {"event": "step", "time": 100.5, **NUMBERS}, EPOCH, END]
WRONG = [None, True, -1, 10**400, 2**70, 1e308, float("nan"), float("inf")]
WRONG += ["x", "\ud800", "<b>", [], [[]], {}, {"a": []}]


def lines(*given):
    return b"\n".join(json.dumps(line).encode() for line in given) + b"\n"


def told(capsys, arguments):
    """The error message of a command for a file, after checking its exit status."""
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code
    error = capsys.readouterr().err
    assert status == 2 and error.count("\n") == 1 and len(error) < 1000, (status, error[:2000])
    return error


BROKEN = {
    "deep": b"[" * 100_000,
    "deep object": b'{"event":' * 50_000,
    "deep field": b'{"event": "begin", "time": 1, "title": ' + b"[" * 900 + b"]" * 900 + b"}\n" + lines(END),
    "number": b"3\n3\n",
    "list": b"[]\n[]\n",
    "text": b'"begin"\n""\n',
    "huge number": b'{"event": "begin", "time": ' + b"9" * 5000 + b"}\n{}\n",
    "no UTF-8": b"\xff\xfe\x00\n\xff\n",
    "no end of line": b"\x00" * 2_000_000,
    "many lines": b"\n" * 100_000 + b"x\nx\n",
    "no first line": lines(EPOCH, END),
    "other event": lines({"event": ["begin"], "time": 1}, END),
    "empty": b"",
}


@pytest.mark.parametrize("name", BROKEN)
def test_report_of_a_broken_file_is_one_line(name, tmp_path, capsys):
    (tmp_path / "report.jsonl").write_bytes(BROKEN[name])
    for place in (tmp_path, tmp_path / "report.jsonl"):
        assert "report.jsonl" in told(capsys, ["report", str(place)])
    assert os.listdir(tmp_path) == ["report.jsonl"]


def places(value, place=()):
    """The path of every value in a nest."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*place, key)
        yield from places(value[key], (*place, key))


def with_other(given, place, value):
    changed = json.loads(json.dumps(given))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def test_report_with_any_field_of_another_kind_is_made_or_rejected(tmp_path, capsys, monkeypatch):
    """Each field in turn: a page is written, or a one-line error names the file."""
    monkeypatch.setattr(charts, "_svg", lambda *arguments: "")  # slow
    path = tmp_path / "report.jsonl"
    path.write_bytes(lines(*GOOD))
    assert main(["report", str(path)]) == 0
    refused = 0
    for place in places(GOOD):
        for value in WRONG:
            path.write_bytes(lines(*with_other(GOOD, place, value)))
            try:
                status = main(["report", str(path)])
            except BaseException as error:
                raise AssertionError((place, value)) from error
            error = capsys.readouterr().err
            assert (status, error.count("\n")) in ((0, 0), (2, 1)), (place, value, error)
            assert not error or "report.jsonl" in error, (place, value)
            refused += bool(error)
    assert refused > 100


def test_report_with_more_replicas_than_there_can_be_is_rejected(tmp_path, capsys):
    (tmp_path / "report.jsonl").write_bytes(lines(*with_other(GOOD, (0, "strategy", "replicas"), 10**12)))
    assert "report.jsonl is not a report" in told(capsys, ["report", str(tmp_path)])


def test_commands_wait_for_no_pipe_and_no_loop_of_links(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "a.jsonl")
    os.mkfifo(tmp_path / "m.keras")
    (tmp_path / "b.jsonl").mkdir()
    os.symlink("loop", tmp_path / "loop")
    os.symlink(".", tmp_path / "again")
    for named, command in (
        ("a.jsonl", "report a.jsonl"),
        ("a.jsonl", "report ."),
        ("loop", "report loop"),
        ("a.jsonl", "launch a.jsonl"),
        ("loop", "launch loop"),
        ("a.jsonl", "launch --log-dir m.keras a.jsonl"),
        ("loop", "profile --service 127.0.0.1:1 --log-dir loop"),
    ):
        assert named in told(capsys, command.split()), command
    assert main(["backups", str(tmp_path / "loop")]) == 2
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("number", ["-1", "0", "nan", "inf", "-inf", "1e999", "x", "", "9" * 5000])
@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "--timeout"],
        ["profile", "--service", "127.0.0.1:1", "--seconds"],
        ["launch", "--timeout"],
        ["launch", "--grace"],
        ["launch", "--workers"],
    ],
)
def test_number_that_is_none_is_rejected(arguments, number, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *others, option = arguments
    given = f"{option}={number}" if option.startswith("--") else f"{option}{number or ' '}"
    if given != "--grace=0":  # it means immediately
        assert option in told(capsys, [*others, given])


def test_good_report_is_read_next_to_broken_ones(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(BROKEN["deep"])
    (tmp_path / "b.jsonl").write_bytes(lines(*GOOD))
    assert len(find_runs(tmp_path)) == 1 and "finished" in render(find_runs(tmp_path))
