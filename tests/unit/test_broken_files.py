"""Saves on disks that fail at every call, power cuts at every call, and files forged with a correct checksum."""

import io
import os

import broken_files
import pytest
from backup_content import SUMMARY, backup_content

from unisono.callbacks import latest_backup, list_backups
from unisono.callbacks.backup.files import container
from unisono.callbacks.backup.files.store import BackupStore
from unisono.commands.backups import main


@pytest.fixture(autouse=True)
def without_waiting_for_the_real_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_failure_of_any_call_of_a_save_loses_nothing(tmp_path):
    assert broken_files.every_call(tmp_path, broken_files.failing_save) > 60


def test_failure_of_any_call_of_a_checkpoint_loses_nothing(tmp_path):
    assert broken_files.every_call(tmp_path, broken_files.failing_checkpoint) >= 30


def test_power_cut_at_any_call_loses_no_save_that_had_returned(tmp_path):
    assert broken_files.power_cuts(tmp_path, seeds=range(3)) > 60


def test_power_cut_at_any_call_of_a_checkpoint_leaves_one_whole(tmp_path):
    assert broken_files.power_cuts_of_checkpoints(tmp_path, seeds=range(8)) >= 24


def good_file():
    stream = io.BytesIO()
    container.write(stream, backup_content(), {**SUMMARY, "time": 1e9})
    return stream.getvalue()


def test_forged_files_are_rejected_or_have_the_right_form(tmp_path):
    assert broken_files.fuzz(tmp_path, good_file(), seeds=range(600)) > 200


WRAP = b'{"summary":{},"arrays":[],"data_bytes":0,"content":%b}'
FORGED = {
    "deep": broken_files.with_manifest(WRAP % (b"[" * 100_000 + b"]" * 100_000)),
    "deep objects": broken_files.with_manifest(WRAP % (b'{"a":' * 900 + b"1" + b"}" * 900)),
    "huge number": broken_files.with_manifest(WRAP % (b"1" * 10_000)),
    "no content": broken_files.with_manifest(b'{"summary":{},"arrays":[],"data_bytes":0}'),
    "no object": broken_files.with_manifest(b"[]"),
    "no JSON": broken_files.with_manifest(b"\xff\xfe{"),
    "version 0": broken_files.with_manifest(WRAP % b"{}", version=0),
    "long manifest": broken_files.with_manifest(WRAP % b"{}", length=2**63),
    "wrong size": broken_files.with_manifest(WRAP.replace(b":0", b":64") % b"{}"),
    "huge size": broken_files.with_manifest(WRAP.replace(b":0", b":%d" % 2**62) % b"{}"),
    "other content": broken_files.with_manifest(WRAP % b'{"a": 1}'),
}


def fifo(path):
    os.mkfifo(path)


def sparse(path):
    with open(path, "wb") as stream:
        stream.write(good_file())
        stream.truncate(2**40)


def flipped(path):
    data = bytearray(good_file())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


SPECIAL = {
    "flipped": flipped,
    "truncated": lambda path: path.write_bytes(good_file()[:500]),
    "emptied": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(bytes(4096)),
    "fifo": fifo,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "a terabyte of nothing": sparse,
}


@pytest.mark.parametrize("kind", [*FORGED, *SPECIAL])
def test_what_is_no_backup_is_passed_over_and_named(tmp_path, kind, capsys):
    store = BackupStore(tmp_path, 5)
    store.write(backup_content(number=1), SUMMARY)
    path = tmp_path / "backup-000002.unisono"
    if kind in FORGED:
        path.write_bytes(FORGED[kind])
    else:
        SPECIAL[kind](path)
    found, content, problems = store.newest_good()
    assert content["number"] == 1 and found.name == "backup-000001.unisono"
    assert len(problems) == 1 and f"{path} is damaged" in problems[0] and len(problems[0]) < 1000
    assert [info.status for info in list_backups(tmp_path)] == ["damaged", "good"]
    assert latest_backup(tmp_path).path.name == "backup-000001.unisono"
    assert main([str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert [line.split()[-1] for line in said.splitlines()[1:3]] == ["damaged", "good"]
    assert f"{path} is damaged" in said


def test_checkpoint_that_is_no_file_is_named(tmp_path, capsys):
    (tmp_path / "a.keras").write_bytes(b"x")
    os.mkfifo(tmp_path / "b\x1b[2J.keras")
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert [line.split()[-1] for line in said.splitlines()] == ["damaged"]
