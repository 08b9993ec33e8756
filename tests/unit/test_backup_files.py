"""The protocol of safe files, and a directory of backups."""

import dataclasses
import errno
import os
import subprocess
import threading
import time

import numpy as np
import pytest
from backup_content import SUMMARY, backup_content

from unisono.callbacks import latest_backup, list_backups, process_name, safe_file, verify_checkpoint
from unisono.callbacks.backup.container import NewerFormatError
from unisono.callbacks.backup.store import BackupStore, backup_paths
from unisono.callbacks.backup.writer_thread import BackgroundWriter
from unisono.callbacks.process_name import this_process
from unisono.commands.backups import main


def failing(error):
    def write(stream):
        stream.write(b"half of it")
        raise error

    return write


def test_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.keras"
    safe_file.write_safely(path, lambda stream: stream.write(b"old"))
    safe_file.write_safely(path, lambda stream: stream.write(b"new"))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.keras"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "I/O error")]
)
def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(safe_file.SaveError, match="earlier files are unchanged") as caught:
        safe_file.write_safely(path, failing(error))
    assert caught.value.errno == error.errno
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_interrupt_during_a_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        safe_file.write_safely(path, failing(KeyboardInterrupt()))
    assert os.listdir(tmp_path) == ["a"] and path.read_bytes() == b"old"


def test_order_is_write_flush_rename_flush_directory(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: calls.append("fsync directory" if is_directory(fd) else "fsync") or fsync(fd)
    )
    monkeypatch.setattr(os, "replace", lambda a, b: calls.append("rename") or replace(a, b))
    safe_file.write_safely(tmp_path / "a", lambda stream: calls.append("write"))
    assert calls == ["write", "fsync", "rename", "fsync directory"]


def is_directory(descriptor):
    return os.path.isdir(f"/proc/self/fd/{descriptor}")


def test_leftovers_are_judged_by_machine_and_process(tmp_path):
    """Those of dead processes of this machine go, and after a day those of other machines; living ones' stay."""
    process = subprocess.Popen(["true"])
    process.wait()
    here, parent = this_process(), process_name._started(os.getppid())
    dead = dataclasses.replace(here, pid=process.pid)
    reused = dataclasses.replace(here, pid=os.getppid(), started=parent + 1)
    parent = dataclasses.replace(here, pid=os.getppid(), started=parent)
    elsewhere = dataclasses.replace(dead, place="00000000")
    for who in (here, dead, reused, parent, elsewhere):
        (tmp_path / f".backup-000001.{who}.tmp.unisono").touch()
    old = tmp_path / f".old.{elsewhere}.tmp.keras"
    old.touch()
    os.utime(old, (time.time() - 90_000,) * 2)
    (tmp_path / ".mine.tmp.txt").touch()
    safe_file.remove_leftovers(tmp_path)
    left = {f".backup-000001.{who}.tmp.unisono" for who in (here, parent, elsewhere)}
    assert set(os.listdir(tmp_path)) == {*left, ".mine.tmp.txt"}


def test_checksum_beside_a_file_is_that_of_b2sum(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"other")
    assert verify_checkpoint(path) is None
    safe_file.write_with_sum(path, lambda temporary: temporary.write_bytes(b"weights"))
    assert verify_checkpoint(path) is True
    assert subprocess.run(["b2sum", "--check", "--quiet", "model.keras.b2"], cwd=tmp_path).returncode == 0
    path.write_bytes(b"weightz")
    assert verify_checkpoint(path) is False


def store_with(directory, count, keep=10):
    store = BackupStore(directory, keep)
    store.prepare()
    for i in range(count):
        store.write(backup_content(i=i), {"epoch": i, "step": 0, "total_steps": 3 * i})
    return store


def test_the_newest_stay_and_numbers_go_on(tmp_path):
    store = store_with(tmp_path, 5, keep=2)
    assert [path.name for path in backup_paths(tmp_path)] == [
        "backup-000005.unisono",
        "backup-000004.unisono",
    ]
    assert store.newest_good()[1]["i"] == 4
    assert store_with(tmp_path, 1, keep=2).newest_good()[0].name == "backup-000006.unisono"


def damage_flip(path):
    data = bytearray(path.read_bytes())
    data[np.random.default_rng(3).integers(len(data))] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "flipped": damage_flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\x00" * 4096),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_named_and_passed_over(tmp_path, damage, capsys):
    store = store_with(tmp_path, 3)
    newest = backup_paths(tmp_path)[0]
    DAMAGES[damage](newest)
    path, content, problems = store.newest_good()
    assert path.name == "backup-000002.unisono" and content["i"] == 1
    assert len(problems) == 1 and str(newest) in problems[0] and "damaged" in problems[0]
    assert [info.status for info in list_backups(tmp_path)] == ["damaged", "good", "good"]
    assert latest_backup(tmp_path).epoch == 1
    assert main([str(tmp_path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("damaged") and lines[2].endswith("good") and str(newest) in lines[4]


def test_fits_of_one_script_find_their_own_backups(tmp_path, capsys):
    """Each is told from the others by how many were done before it in the same process."""
    first, second = store_with(tmp_path, 3, keep=2), BackupStore(tmp_path, 2)
    first.finished()
    second.prepare()
    assert second.newest_good() == (None, None, []) and second.others() == backup_paths(tmp_path)
    for epoch, name in ((7, "second"), (8, "third"), (9, "fourth")):
        second.write(backup_content(i=name), {**SUMMARY, "epoch": epoch})
    assert [path.name for path in backup_paths(tmp_path)] == [
        "backup-fit2-000003.unisono",
        "backup-fit2-000002.unisono",
        "backup-000003.unisono",
        "backup-000002.unisono",
    ]
    assert (first.newest_good()[1]["i"], second.newest_good()[1]["i"]) == (2, "fourth")
    assert latest_backup(tmp_path).epoch == 9
    second.delete_all()
    assert [path.name for path in backup_paths(tmp_path)] == [
        "backup-000003.unisono",
        "backup-000002.unisono",
    ]


def test_deleted_file_is_no_matter(tmp_path):
    store = store_with(tmp_path, 3)
    backup_paths(tmp_path)[0].unlink()
    assert store.newest_good()[1]["i"] == 1


def test_all_damaged_gives_none_and_the_names(tmp_path, capsys):
    store = store_with(tmp_path, 2)
    for path in backup_paths(tmp_path):
        path.write_bytes(b"")
    path, content, problems = store.newest_good()
    assert path is None and content is None and len(problems) == 2
    assert latest_backup(tmp_path) is None
    assert main([str(tmp_path)]) == 1


def test_newer_version_is_refused_by_name(tmp_path, monkeypatch):
    store = store_with(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("unisono.callbacks.backup.container.VERSION", 2)
        store.write({"i": "newer"}, {})
    with pytest.raises(NewerFormatError, match=r"backup-000002\.unisono.*Install the newer unisono"):
        store.newest_good()
    assert [info.status for info in list_backups(tmp_path)] == ["newer", "good"]


def test_latest_backup_is_a_path_with_the_facts(tmp_path):
    began = time.time()
    store_with(tmp_path, 2)
    info = latest_backup(tmp_path)
    assert os.path.getsize(info) == info.size
    assert (info.status, info.epoch, info.step, info.total_steps) == ("good", 1, 0, 3)
    assert began <= info.time <= time.time()
    assert latest_backup(tmp_path / "nowhere") is None and list_backups(tmp_path / "nowhere") == []


def test_vanished_directory_is_an_error_and_not_made_again(tmp_path):
    store = store_with(tmp_path / "backup", 1)
    os.rename(tmp_path / "backup", tmp_path / "moved")
    with pytest.raises(safe_file.SaveError, match="the directory is gone"):
        store.write({}, {})
    assert not (tmp_path / "backup").exists()
    assert latest_backup(tmp_path / "moved").status == "good"


def test_directory_that_cannot_be_made_or_written_is_refused_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(safe_file.SaveError, match="file"):
        BackupStore(tmp_path / "file", 2).prepare()
    # Root may write anywhere, so a read-only file system is played by the call that it would fail in.
    monkeypatch.setattr("builtins.open", raising(OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(safe_file.SaveError, match=r"Read-only file system.*Make it writable"):
        BackupStore(tmp_path, 2).prepare()


def raising(error):
    def function(*args, **kwargs):
        raise error

    return function


def test_full_disk_loses_nothing(tmp_path, monkeypatch):
    store = store_with(tmp_path, 2, keep=2)
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(safe_file.SaveError, match=r"No space left on device, .* bytes free.*Free space"):
        store.write({"i": 9}, {})
    assert [info.status for info in list_backups(tmp_path)] == ["good", "good"]
    assert len(os.listdir(tmp_path)) == 2


def test_delete_all_leaves_what_is_not_ours(tmp_path):
    store = store_with(tmp_path / "b", 2)
    (tmp_path / "b" / "notes.txt").touch()
    store.delete_all()
    store.remove_directory()
    assert os.listdir(tmp_path / "b") == ["notes.txt"]
    (tmp_path / "b" / "notes.txt").unlink()
    store.remove_directory()
    assert not (tmp_path / "b").exists()


def test_cli_says_when_there_is_nothing(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path)]) == 1
    safe_file.write_with_sum(tmp_path / "best.keras", lambda temporary: temporary.write_bytes(b"x"))
    assert main([str(tmp_path)]) == 0
    assert "best.keras  1 B  good" in capsys.readouterr().out


def test_background_job_runs_beside_and_its_error_is_raised_once():
    writer, release = BackgroundWriter(), threading.Event()
    writer.submit(lambda: release.wait(10))
    assert writer.busy
    writer.raise_error()
    release.set()
    writer.submit(raising(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        writer.wait()
    writer.wait()
    assert not writer.busy


def test_background_jobs_never_overlap():
    writer, order = BackgroundWriter(), []
    for i in range(3):
        writer.submit(lambda i=i: (order.append(("begin", i)), time.sleep(0.01), order.append(("end", i))))
    writer.wait()
    assert order == [(what, i) for i in range(3) for what in ("begin", "end")]
