"""The cache of compiled programs: whatever is wrong with its folder, a step is slower, never wrong, and never an error."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest
import tensorflow as tf
from disk import Disk

from unisono.commands import doctor
from unisono.compat.xla_flags import PROGRAMS, TUNED
from unisono.distribute.hardware import program_cache
from unisono.distribute.hardware.program_cache import LATE, ProgramCache

NAME, CONTENT = "xla_compile_cache__1__2__XLA_CPU_JIT.pb", b"code " * 100


@pytest.fixture(autouse=True)
def no_other_entries():
    yield
    for kind in (PROGRAMS, TUNED):
        if tf.io.gfile.isdir(kind):
            tf.io.gfile.rmtree(kind)


def cache_in(folder):
    """A cache that is on, as in a process whose first import is ours."""
    cache = ProgramCache()
    cache.folder, cache.why_off = folder / "root" / "machine", ""
    return cache


def compiled(kind=PROGRAMS, name=NAME, content=CONTENT):
    """What XLA does in a first call: it takes the entry that is there, or makes one. Returns what it took."""
    with contextlib.suppress(tf.errors.NotFoundError), tf.io.gfile.GFile(f"{kind}/{name}", "rb") as file:
        return file.read()
    tf.io.gfile.makedirs(kind)
    with tf.io.gfile.GFile(f"{kind}/{name}", "wb") as file:
        file.write(content)
    return None


def first_call(cache, label="model", **entry):
    with cache.reuse(label):
        return compiled(**entry)


def entries(folder):
    return [path for path in (folder / "root").rglob("*") if path.is_file()]


def test_second_process_takes_what_the_first_compiled_for_the_same_model(tmp_path):
    first, second, other = cache_in(tmp_path), cache_in(tmp_path), cache_in(tmp_path)
    assert first_call(first) is None and not first.all_loaded_since(program_cache.Counts())
    assert not tf.io.gfile.listdir(PROGRAMS)  # the memory is free again
    assert first_call(second) == CONTENT and second.all_loaded_since(program_cache.Counts())
    assert first_call(other, "another model") is None
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o700


def test_folders_are_closed_to_others_whatever_the_process_allows(tmp_path):
    (tmp_path / "root").mkdir(mode=0o755)  # made by the user
    before = os.umask(0)
    try:
        first_call(cache_in(tmp_path))
    finally:
        os.umask(before)
    made = [path for path in (tmp_path / "root").rglob("*") if path.is_dir()]
    assert len(made) == 2 and {path.stat().st_mode & 0o777 for path in made} == {0o700}


def test_tuned_kernels_serve_every_model(tmp_path):
    entry = {"kind": TUNED, "name": "kernel.textproto", "content": b"tile: 8"}
    assert first_call(cache_in(tmp_path), **entry) is None
    assert first_call(cache_in(tmp_path), "another model", **entry) == b"tile: 8"


def flip(at):
    def damage(file):
        content = bytearray(file.read_bytes())
        content[at] ^= 4
        file.write_bytes(content)

    return damage


DAMAGES = {
    **{f"flipped at {at}": flip(at) for at in (0, 31, 32, 200, -1)},
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "empty": lambda file: file.write_bytes(b""),
    "foreign": lambda file: file.write_bytes(b"\x0a\x04code" * 50),
    "of another name": lambda file: file.replace(file.with_name(NAME.replace("1", "3"))),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "gone": lambda file: file.unlink(),
    "unreadable link": lambda file: (file.unlink(), file.symlink_to("/proc/self/mem")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_entry_that_is_not_whole_is_not_loaded(tmp_path, damage):
    first_call(cache_in(tmp_path))
    (file,) = entries(tmp_path)
    DAMAGES[damage](file)
    cache = cache_in(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if damage == "a folder" else "error")
        assert first_call(cache) is None and not cache.all_loaded_since(program_cache.Counts())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", range(4))
def test_disk_that_fails_is_one_warning_and_leaves_no_part(tmp_path, call, error):
    cache = cache_in(tmp_path)
    (tmp_path / "root").mkdir(mode=0o700)
    with warnings.catch_warnings(record=True) as caught, Disk(tmp_path, call, error) as disk:
        warnings.simplefilter("always")
        first_call(cache)
        first_call(cache, name="another.pb")
    assert len(caught) == disk.failed and len(entries(tmp_path)) == 2 - disk.failed
    assert all("are not kept" in str(each.message) for each in caught)
    assert first_call(cache_in(tmp_path)) in (None, CONTENT)


def test_folder_that_cannot_be_made_is_one_warning(tmp_path):
    (tmp_path / "root").write_bytes(b"a file")  # as in a home that is read-only, which a superuser may write
    cache = cache_in(tmp_path)
    with pytest.warns(UserWarning, match="cannot be written") as caught:
        assert first_call(cache) is None and first_call(cache, "another") is not None
    assert len(caught) == 1


@pytest.mark.parametrize("mode, folder", [(0o770, "root"), (0o702, "root"), (0o720, "root/machine")])
def test_folder_that_others_can_write_is_not_used(tmp_path, mode, folder):
    first_call(cache_in(tmp_path))
    tf.io.gfile.makedirs(PROGRAMS)
    (tmp_path / folder).chmod(mode)
    with pytest.warns(UserWarning, match="chmod 700") as caught:
        cache = cache_in(tmp_path)
        assert first_call(cache) is None
        first_call(cache, "another")
    assert len(caught) == 1 and "chmod 700" in program_cache.why_refused(tmp_path / folder)


def test_oldest_entries_beyond_the_limit_and_parts_of_killed_writers_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(program_cache, "_MOST_BYTES", 1500)
    for n in range(4):
        first_call(cache_in(tmp_path), f"model {n}")
        for path in entries(tmp_path):
            os.utime(path, (path.stat().st_mtime - 60,) * 2)
        if n == 0:
            left = entries(tmp_path)[0].with_name(".part")
            left.write_bytes(b"half")
            os.utime(left, (time.time() - 7200,) * 2)
    assert [first_call(cache_in(tmp_path), f"model {n}") == CONTENT for n in (3, 2, 0)] == [True, True, False]
    assert not left.exists()


WRITER = """
import pathlib, sys
from unisono.distribute.hardware import program_cache
folder = pathlib.Path(sys.argv[1])
for n in range(300):
    name, content = f"{n % 3}.pb", bytes([n % 3]) * 400_000
    program_cache.write_entry(folder / name, content)
    assert program_cache.read_entry(folder / name) in (None, content)
    if n == 10:
        print("writes", flush=True)
"""


def test_eight_processes_and_killed_ones_leave_whole_entries(tmp_path):
    command = [sys.executable, "-W", "error", "-c", WRITER, str(tmp_path / "entries")]
    environ = {**os.environ, "UNISONO_CACHE": ""}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) for _ in range(8)]
    for n, process in enumerate(running):
        assert process.stdout.readline() == b"writes\n"
        if n < 3:
            process.send_signal(signal.SIGKILL)
    assert [process.wait() for process in running][3:] == [0] * 5
    for process in running:
        process.stdout.close()
    whole = [program_cache.read_entry(tmp_path / "entries" / f"{n}.pb") for n in range(3)]
    assert whole == [bytes([n]) * 400_000 for n in range(3)]


def test_doctor_shows_the_folder_its_size_and_whether_it_is_used(tmp_path, before_flags_are_read):
    first_call(cache_in(tmp_path))
    environ = {"UNISONO_CACHE": str(tmp_path / "root")}
    late, size = doctor.programs(environ)
    assert str(tmp_path) in late.value and "not used" in late.value and LATE in late.note
    assert size.value == "1 entries, 0.0 MiB"
    before_flags_are_read()
    assert "used for CPUs" in next(doctor.programs(environ)).value
    (tmp_path / "root").chmod(0o777)
    assert "chmod 700" in next(doctor.programs(environ)).problem
    (off,) = doctor.programs({"UNISONO_CACHE": ""})
    assert off.value == "none" and 'UNISONO_CACHE is ""' in off.note
