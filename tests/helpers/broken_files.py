"""Failing disks, power cuts during saves, and forged files: seeded cases, for tests and for long runs."""

import contextlib
import copy
import errno
import hashlib
import io
import json
import os
import shutil
import struct
import types
import zipfile
from pathlib import Path

from backup_content import SUMMARY, backup_content
from disk import Disk, after_power_cut, rng_of

from unisono.callbacks import ModelCheckpoint, SaveError, verify_checkpoint
from unisono.callbacks.backup.files import container
from unisono.callbacks.backup.files.owner import OWNER_FILE, FolderOwner
from unisono.callbacks.backup.files.store import BackupStore, backup_paths, read_backup

ERRORS = (errno.ENOSPC, errno.EIO, errno.EINTR)
KEEP = 2


def save_backup(folder, number):
    """One fit that acquires the folder, saves once and releases it; True if it reported that it saved."""
    owner = FolderOwner(folder)
    store = BackupStore(folder, KEEP, owner.check)
    saved = False
    try:
        store.prepare()
        owner.acquire()
        store.remove_leftovers()
        store.write(backup_content(number=number), SUMMARY)
        saved = True
    finally:
        owner.release()
    return saved


def newest(folder):
    """The number in the newest backup, and the number of damaged files."""
    found, damaged = None, 0
    for path in backup_paths(folder):
        try:
            content = read_backup(path)[1]
        except container.DamagedFileError:
            damaged += 1
            continue
        found = content["number"] if found is None else found
    return found, damaged


def failing_save(folder, fail_at, error):
    """Two saves that succeed, then one in which a call fails. False once there is no call left to fail."""
    for number in (1, 2):
        save_backup(folder, number)
    with Disk(folder, fail_at, error) as disk:
        saved, refused = False, None
        try:
            saved = save_backup(folder, 3)
        except OSError as problem:
            refused = problem
    if not disk.failed:
        assert saved and refused is None
        return False
    where = f"{disk.calls[fail_at]}, call {fail_at}, errno {error}"
    assert refused is None or isinstance(refused, SaveError), f"{where}: {refused!r}"
    assert saved or refused is not None, where
    found, damaged = newest(folder)
    assert damaged == 0 and found in ((3,) if saved else (2, 3)), f"{where}: {found} {damaged}"
    assert len(backup_paths(folder)) >= KEEP, where
    left = {name for name in os.listdir(folder) if name.endswith((".tmp", ".unisono", ".json"))}
    left -= {path.name for path in backup_paths(folder)}
    assert not left or disk.calls[fail_at] == "unlink", f"{where}: {left}"
    assert save_backup(folder, 4) and newest(folder) == (4, 0), where
    assert len(backup_paths(folder)) == KEEP, where
    return True


class Saver:
    """Stands in for a model: saving writes its value as an archive, in two pieces."""

    metrics = ()
    fit_state = None

    def __init__(self, value):
        self.value = value

    def save(self, path, overwrite=True):
        archive = archive_of(self.value)
        with open(path, "wb") as file:
            file.write(archive[:40])
            file.write(archive[40:])


def archive_of(value):
    with io.BytesIO() as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(zipfile.ZipInfo("value"), value)
        return stream.getvalue()


def value_in(path):
    with zipfile.ZipFile(path) as archive:
        return archive.read("value")


def save_checkpoint(folder, value):
    """One epoch of a `ModelCheckpoint` with a fixed file name."""
    callback = ModelCheckpoint(folder / "m.keras", monitor="loss")
    callback.set_model(types.SimpleNamespace(metrics=(), fit_state=None, save=Saver(value).save))
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    callback.on_epoch_end(0, {"loss": 1.0})


def failing_checkpoint(folder, fail_at, error):
    """As `failing_save` for `ModelCheckpoint`: leaves the complete old or new file, never one with a wrong checksum."""
    save_checkpoint(folder, b"old value")
    with Disk(folder, fail_at, error) as disk:
        refused = None
        try:
            save_checkpoint(folder, b"the new value")
        except OSError as problem:
            refused = problem
    if not disk.failed:
        assert refused is None
        return False
    where = f"{disk.calls[fail_at]}, call {fail_at}, errno {error}"
    assert refused is None or isinstance(refused, SaveError), f"{where}: {refused!r}"
    value = value_in(folder / "m.keras")
    assert value in ((b"the new value",) if refused is None else (b"old value", b"the new value")), where
    assert verify_checkpoint(folder / "m.keras") and len(os.listdir(folder)) <= 2, where
    if value == b"old value":
        assert "earlier files are unchanged" in str(refused), where
    save_checkpoint(folder, b"next")
    assert verify_checkpoint(folder / "m.keras") and value_in(folder / "m.keras") == b"next", where
    return True


def every_call(folder, failing, errors=ERRORS):
    """Runs `failing` with each call failing in turn; returns the number of cases."""
    count = 0
    for error in errors:
        for fail_at in range(1000):
            place = Path(folder) / f"{error}-{fail_at}"
            place.mkdir()
            if not failing(place, fail_at, error):
                break
            count += 1
            shutil.rmtree(place)
    return count


def power_cuts(folder, seeds):
    """Cuts power after every call of three saves, and checks what a restarted machine finds."""
    work = Path(folder) / "work"
    work.mkdir()
    done = []  # (number of calls, number) when each save returned
    with Disk(work) as disk:
        for number in (1, 2, 3):
            save_backup(work, number)
            done.append((len(disk.log), number))
    for cut in range(len(disk.log) + 1):
        for seed in seeds:
            found_in = Path(folder) / f"{cut}-{seed}"
            after_power_cut(disk.log[:cut], found_in, rng_of(cut, seed))
            least = max((number for calls, number in done if calls <= cut), default=None)
            found, _ = newest(found_in)
            assert least is None or (found is not None and found >= least), (cut, seed, found, least)
            (found_in / OWNER_FILE).unlink(
                missing_ok=True
            )  # its process "runs" here; a restarted machine has no such process
            assert save_backup(found_in, 9) and newest(found_in)[0] == 9, (cut, seed)
            shutil.rmtree(found_in)
    return len(disk.log)


def power_cuts_of_checkpoints(folder, seeds):
    """As `power_cuts`, for a checkpoint that is overwritten repeatedly."""
    work = Path(folder) / "work"
    work.mkdir()
    values, done = [b"first", b"second value", b"third"], []
    with Disk(work) as disk:
        for number, value in enumerate(values):
            save_checkpoint(work, value)
            done.append((len(disk.log), number))
    for cut in range(len(disk.log) + 1):
        for seed in seeds:
            found_in = Path(folder) / f"{cut}-{seed}"
            after_power_cut(disk.log[:cut], found_in, rng_of(cut, seed))
            least = max((number for calls, number in done if calls <= cut), default=None)
            path = found_in / "m.keras"
            if path.exists() or least is not None:
                assert value_in(path) in values[least or 0 :], (cut, seed)
                assert verify_checkpoint(path), (cut, seed)
            shutil.rmtree(found_in)
    return len(disk.log)


def with_right_checksum(body):
    return body + hashlib.blake2b(body, digest_size=container.DIGEST_BYTES).digest()


def with_manifest(text, data=b"", version=container.VERSION, length=None):
    """A file with arbitrary bytes as its manifest."""
    head = struct.pack("<8sIQ", container.MAGIC, version, len(text) if length is None else length) + text
    return with_right_checksum(head + bytes(-len(head) % 64) + data)


def parts_of(data):
    """`(manifest, data)` of a valid file."""
    length = struct.unpack_from("<Q", data, 12)[0]
    begin = -(-(20 + length) // 64) * 64
    return json.loads(data[20 : 20 + length]), data[begin : -container.DIGEST_BYTES]


WRONG_VALUES = [
    None,
    True,
    -1,
    2**70,
    0.5,
    1e308,
    "",
    "x" * 50,
    [],
    [[]],
    {},
    {"$array": 0},
    {"$array": -1},
    {"$bytes": 99},
]
WRONG_VALUES += [
    {"$tuple": 3},
    {"$dict": [[[], 1]]},
    {"$objects": {"shape": [2**40], "items": []}},
    {"$float": "x"},
]
WRONG_VALUES += ["O", "V8", "i4,O", "finfo", {"$scalar": 0}, {"copies": []}, {"$dict": "ab"}]


def forged(good, seed):
    """A valid file with one to three manifest values replaced and a correct checksum."""
    rng = rng_of("forged", seed)
    manifest, data = parts_of(good)
    for _ in range(rng.randint(1, 3)):
        place, key = None, None
        node = manifest
        while isinstance(node, dict | list) and len(node) and (place is None or rng.random() < 0.85):
            key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
            place, node = node, node[key]
        if rng.random() < 0.2 and isinstance(place, dict):
            del place[key]
        else:
            place[key] = copy.deepcopy(rng.choice(WRONG_VALUES))  # may be modified again later
    return with_manifest(json.dumps(manifest).encode(), data)


def fuzz(folder, good, seeds):
    """Reads forged files: each is rejected as damaged, or its content has the right form. Returns how many were rejected."""
    refused = 0
    for seed in seeds:
        path = Path(folder) / "backup-000001.unisono"
        path.write_bytes(forged(good, seed))
        outcomes = []
        for read in (read_backup, lambda path: container.read(path, outline=True)):
            with contextlib.suppress(container.DamagedFileError, container.BackupMismatchError):
                outcomes.append(read(path))
        refused += not outcomes
    return refused
