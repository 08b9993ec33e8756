"""The protocol for safe file writes, and a directory of backups."""

import dataclasses
import errno
import hashlib
import os
import pathlib
import shutil
import subprocess
import threading
import time
import types
import zipfile
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import tensorflow as tf
from backup_content import SUMMARY, backup_content

from unisono.callbacks import (
    BackupMismatchError,
    SaveError,
    latest_backup,
    list_backups,
    process_identity,
    read_backup,
    safe_file,
    verify_checkpoint,
)
from unisono.callbacks.backup import resuming
from unisono.callbacks.backup.files import container, shard_files
from unisono.callbacks.backup.files import store as store_module
from unisono.callbacks.backup.files.background import BackgroundWriter
from unisono.callbacks.backup.files.container import NewerFormatError
from unisono.callbacks.backup.files.owner import FolderOwner
from unisono.callbacks.backup.files.store import BackupStore, Found, backup_paths, read_checked
from unisono.callbacks.process_identity import this_process
from unisono.callbacks.saving import checkpoint_files
from unisono.commands.backups import main
from unisono.distribute.sharding.sharded_value import ShardedValue

DATA = pathlib.Path(__file__).resolve().parent / "backup-of-0.2.0.unisono"  # written by that release


def failing(error):
    def write(stream):
        stream.write(b"half of it")
        raise error

    return write


def test_interrupt_during_a_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        safe_file.write_safely(path, failing(KeyboardInterrupt()))
    assert os.listdir(tmp_path) == ["a"] and path.read_bytes() == b"old"


def test_leftovers_are_judged_by_machine_and_process(tmp_path):
    """Files of dead processes on this machine are removed, and after a day those of other machines; others stay."""
    process = subprocess.Popen(["true"])
    process.wait()
    here, parent = this_process(), process_identity._find_start_time(os.getppid())
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


def hdf5(libver):
    def write(path):
        with h5py.File(path, "w", libver=libver) as file:
            file["weights"] = np.arange(9.0)

    return write


def archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights", b"weights" * 30)


@pytest.mark.parametrize("write", [archive, hdf5("earliest"), hdf5("latest")])
def test_checksum_in_a_file_is_of_the_bytes_before_it(tmp_path, write):
    path = tmp_path / "model.weights.h5"
    write(path)
    assert verify_checkpoint(path) is None
    path.unlink()
    digest = checkpoint_files.write_checkpoint(path, write)
    whole = path.read_bytes()
    assert verify_checkpoint(path) is True and checkpoint_files.checkpoint_checksum(path) == digest
    bytes_before, line = whole[: -len(digest) - 40], whole[-len(digest) - 40 :]
    assert line == f"BLAKE2b of all bytes before this line: {digest}\n".encode()
    assert hashlib.blake2b(bytes_before).hexdigest() == digest
    if write is not archive:
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["weights"][()], np.arange(9.0))
    for length in range(64, len(whole), 5):
        path.write_bytes(whole[:length])
        assert verify_checkpoint(path) is (None if whole[:length] == bytes_before else False), length
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert verify_checkpoint(path) is False, place
    path.write_bytes(whole + b"more")
    assert verify_checkpoint(path) is False


def test_file_of_an_unknown_form_is_left_as_it_was_written(tmp_path):
    path = tmp_path / "model.keras"
    digest = checkpoint_files.write_checkpoint(path, lambda temporary: temporary.write_bytes(b"weights"))
    assert path.read_bytes() == b"weights" and os.listdir(tmp_path) == ["model.keras"]
    assert verify_checkpoint(path) is None and checkpoint_files.checkpoint_checksum(path) == digest


def store_with(directory, count, keep=10):
    store = BackupStore(directory, keep)
    store.prepare()
    store.newest_good()
    for i in range(count):
        store.write(backup_content(i=i), {"epoch": i, "step": 0, "total_steps": 3 * i})
    return store


def names(directory):
    """The names of the backups, newest first, without what all of them have."""
    return [path.name.removeprefix("backup-").removesuffix(".unisono") for path in backup_paths(directory)]


def test_the_newest_stay_and_numbers_go_on(tmp_path):
    store = store_with(tmp_path, 5, keep=2)
    assert names(tmp_path) == ["000005", "000004"]
    assert store.newest_good()[1]["i"] == 4
    assert store_with(tmp_path, 1, keep=2).newest_good()[0].name == "backup-000006.unisono"


def damage_flip(path):
    data = bytearray(path.read_bytes())
    data[np.random.default_rng(3).integers(len(data))] ^= 4
    path.write_bytes(data)


def test_fits_of_one_script_find_their_own_backups(tmp_path, capsys):
    """Fits are distinguished by how many fits ran before them in the same process."""
    first, second = store_with(tmp_path, 3, keep=2), BackupStore(tmp_path, 2)
    first.mark_finished()
    second.prepare()
    assert second.newest_good() == (None, None, []) and second.others() == backup_paths(tmp_path)
    for epoch, name in ((7, "second"), (8, "third"), (9, "fourth")):
        second.write(backup_content(i=name), {**SUMMARY, "epoch": epoch})
    assert names(tmp_path) == ["fit2-000003", "fit2-000002", "000003", "000002"]
    assert (first.newest_good()[1]["i"], second.newest_good()[1]["i"]) == (2, "fourth")
    assert latest_backup(tmp_path).epoch == 9
    second.delete_all()
    assert names(tmp_path) == ["000003", "000002"]


def run_with(directory, count):
    """Makes backups as a run does: it first looks for backups to resume from."""
    store = BackupStore(directory, 9)
    store.prepare()
    store.newest_good()
    for i in range(count):
        store.write(backup_content(i=i), SUMMARY)
    return store


def test_backups_of_a_run_know_it_however_often_it_is_resumed(tmp_path):
    for directory in (tmp_path / "a", tmp_path / "b"):
        for _ in range(2):
            run_with(directory, 2)
    runs = {info.run for info in list_backups(tmp_path / "a")}
    assert len(runs) == 1 and runs.isdisjoint(info.run for info in list_backups(tmp_path / "b"))
    second = run_with(tmp_path / "a", 0)
    second.mark_finished()
    another = run_with(tmp_path / "a", 1)
    assert another.newest_good().path.name == "backup-fit2-000001.unisono"


@pytest.mark.parametrize("name", ["backup-000001.unisono", "backup-000002.unisono", "backup-000007.unisono"])
def test_backup_of_another_run_among_those_of_a_run_is_an_error_that_names_it(tmp_path, name):
    run_with(tmp_path / "a", 2)
    run_with(tmp_path / "b", 1)
    mixed = tmp_path / "a" / name
    shutil.copy(tmp_path / "b" / "backup-000001.unisono", mixed)
    store = BackupStore(tmp_path / "a", 2)
    with pytest.raises(BackupMismatchError, match=r"belong to different runs .*move the files") as caught:
        store.newest_good()
    assert str(mixed) in str(caught.value)
    damage_flip(mixed)  # damaged files are skipped, whatever they contain
    assert store.newest_good().path is not None


def test_backup_of_version_0_2_is_rejected_by_what_it_lacks(tmp_path, capsys):
    path = tmp_path / "backup-000001.unisono"
    shutil.copy(DATA, path)
    for read in (read_backup, lambda _: BackupStore(tmp_path, 2).newest_good()):
        with pytest.raises(BackupMismatchError, match=r"names no run, .* no longer read: finish") as caught:
            read(path)
        assert str(path) in str(caught.value)
    assert [info.status for info in list_backups(tmp_path)] == ["older"]
    assert main([str(tmp_path)]) == 1 and "version 0.2 of Unisono" in capsys.readouterr().out
    path.unlink()
    store = run_with(tmp_path, 1)
    shutil.copy(
        DATA, tmp_path / "backup-000000.unisono"
    )  # older than a backup of this version, it counts for nothing
    assert store.newest_good().path.name == "backup-000001.unisono"


def test_newer_version_is_rejected_by_name(tmp_path, monkeypatch):
    store = store_with(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("unisono.callbacks.backup.files.container.VERSION", 2)
        store.write({"i": "newer"}, {})
    with pytest.raises(NewerFormatError, match=r"backup-000002\.unisono.*Install the newer unisono"):
        store.newest_good()
    assert [info.status for info in list_backups(tmp_path)] == ["newer", "good"]


def test_latest_backup_is_a_path_with_the_facts(tmp_path, stop_clock):
    stop_clock(store_module, 123.0)
    store_with(tmp_path, 2)
    info = latest_backup(tmp_path)
    assert os.path.getsize(info) == info.size
    assert (info.status, info.epoch, info.step, info.total_steps) == ("good", 1, 0, 3)
    assert info.time == 123.0
    assert latest_backup(tmp_path / "nowhere") is None and list_backups(tmp_path / "nowhere") == []


def test_directory_that_cannot_be_made_or_written_is_rejected_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(safe_file.SaveError, match="file"):
        BackupStore(tmp_path / "file", 2).prepare()
    # Root may write anywhere, so a read-only file system is simulated by the call that would fail on it.
    monkeypatch.setattr("builtins.open", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(safe_file.SaveError, match=r"Read-only file system.*Make it writable"):
        FolderOwner(tmp_path).acquire()


def test_full_disk_loses_nothing(tmp_path, monkeypatch):
    store = store_with(tmp_path, 2, keep=2)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
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
    checkpoint_files.write_checkpoint(tmp_path / "best.keras", archive)
    assert main([str(tmp_path)]) == 0
    assert "best.keras  490 bytes  good" in capsys.readouterr().out


def test_background_job_runs_concurrently_and_its_error_is_raised_once():
    writer, release = BackgroundWriter(), threading.Event()
    writer.submit(lambda: release.wait())
    assert writer.busy
    writer.raise_error()
    release.set()
    writer.submit(Mock(side_effect=OSError("disk")))
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


def in_shards(count):
    value = ShardedValue.__new__(ShardedValue)
    value.shards = [None] * count
    return value


def write_part(path, worker, shards):
    """The shards of a worker, and what the manifest says of them."""
    own = shard_files.part_path(path, worker)
    with open(own, "wb") as stream:
        container.write(stream, {"shards": shards}, {})
    return {"name": own.name, "checksum": container.checksum(own).hex()}


def write_with_parts(path, run=0.0, named=None):
    """A backup of three workers with one shard of an array each. `named`: the shards that its manifest lists instead."""
    arrays, right = [np.full(4, run + worker) for worker in range(3)], []
    content = backup_content()
    content["workers"] *= 3
    content["variables"]["optimizer"].append({"shards": arrays[:1]})
    content["fingerprint"]["variables"]["optimizer"].append(["slot", [12], "float64"])
    number = len(content["variables"]["optimizer"]) - 1
    for worker in (1, 2):
        right.append(write_part(path, worker, {"optimizer": {number: [arrays[worker]]}}))
    with open(path, "wb") as stream:
        content["parts"] = right if named is None else named
        container.write(stream, content, {**SUMMARY, "time": 0.0})
    return right, number


def test_a_worker_keeps_the_shards_of_others_only_where_it_needs_them(tmp_path):
    """With the same number of workers its own shards suffice: the others are verified, but not read into memory."""
    path = tmp_path / "backup-000001.unisono"
    _, number = write_with_parts(path)
    read = read_checked(path, only=2)[1]
    shards = read["variables"]["optimizer"][number]["shards"]
    assert [float(shard[0]) for shard in shards] == [0.0, 0.0, 2.0]
    assert shards[1].strides == (0,), "the placeholder of worker 1's shard"
    for slot, workers, enough in (
        (in_shards(1), (2, 3), True),
        (object(), (2, 3), False),  # no longer sharded
        (in_shards(3), (0, 1), False),  # one worker of three
    ):
        assert shard_files.own_are_enough(read, {"optimizer": [None] * number + [slot]}, workers) == enough
    assert not shard_files.own_are_enough(read, {}, (2, 3))
    damage_flip(shard_files.part_path(path, 1))
    with pytest.raises(container.DamagedFileError):
        read_checked(path, only=2)


def test_forged_and_mixed_parts_are_rejected_with_their_names(tmp_path):
    path, other = tmp_path / "backup-000001.unisono", tmp_path / "other" / "backup-000001.unisono"
    other.parent.mkdir()
    (one, two), _ = write_with_parts(path)
    write_with_parts(other, run=10.0)
    assert read_checked(path) and [info.status for info in list_backups(tmp_path)] == ["good"]
    wrong = [5, -1, 2**70, True, 0.5, "ab", {}, []]
    wrong += [[one], [one, two, two], [two, one], [one, one], [1, 2]]
    wrong += [
        [{**one, "name": name}, two]
        for name in (None, 3, [], "", ".", "..", "a/b", path.name, two["name"], "/")
    ]
    wrong += [[{**one, "checksum": value}, two] for value in (None, 3, "", two["checksum"])]
    wrong += [[[[]], {}], [{"name": one["name"]}, two], [{"checksum": one["checksum"]}, two]]
    for named in wrong:
        write_with_parts(path, named=named)
        with pytest.raises(container.DamagedFileError, match=f"{path.name} is damaged") as caught:
            read_checked(path)
        assert not isinstance(caught.value.__cause__, AssertionError)
        assert [info.status for info in list_backups(tmp_path)] == ["damaged"]
    write_with_parts(path)
    for worker in (1, 2):  # a shard of another run, then the manifest of another run
        part = shard_files.part_path(path, worker)
        kept = part.read_bytes()
        shutil.copy(shard_files.part_path(other, worker), part)
        with pytest.raises(container.DamagedFileError, match=f"{path.name} .*{part.name} belongs to another"):
            read_checked(path)
        part.write_bytes(kept)
    shutil.copy(other, path)
    with pytest.raises(container.DamagedFileError, match=r"part-1.unisono belongs to another save"):
        read_checked(path)


@pytest.mark.parametrize(
    "shards", [5, [], {"optimizer": 3}, {"none": {0: []}}, {"model": {0: [3]}}, {"optimizer": {9: []}}]
)
def test_part_with_a_forged_content_is_rejected(tmp_path, shards):
    path = tmp_path / "backup-000001.unisono"
    named, _ = write_with_parts(path)
    write_with_parts(path, named=[write_part(path, 1, shards), named[1]])
    write_part(path, 1, shards)
    with pytest.raises(container.DamagedFileError, match=f"{path.name} is damaged"):
        read_checked(path)


@pytest.mark.parametrize("chief", [True, False])
def test_worker_that_does_not_see_the_chiefs_backup_is_named_on_all(chief, tmp_path, monkeypatch):
    path = tmp_path / "backup-000001.unisono"
    said = []

    def gather(value, strategy):
        said.append(value)
        if len(said) == 1:
            return [{"name": path.name}, None]
        return [None, f"{path} is damaged: it cannot be read" if chief else value]

    monkeypatch.setattr(resuming, "gather_json", gather)
    monkeypatch.setattr(BackupStore, "newest_good", lambda *_: Found(path, {}, []))
    model = types.SimpleNamespace(distribute_strategy=tf.distribute.get_strategy())
    with pytest.raises(SaveError, match=r"Worker 1 cannot read .* all workers must see the same files"):
        resuming.on_all_workers(model, chief, BackupStore(tmp_path, keep=2), Mock())
    assert len(said) == 2
