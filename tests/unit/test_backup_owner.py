"""The owner of a backup folder: live owners are respected, dead ones replaced, and every wait is bounded."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import threading
import time

import pytest
from helpers import in_threads

from unisono.callbacks import SaveError, process_identity
from unisono.callbacks.backup.files import owner as owner_module
from unisono.callbacks.backup.files.owner import OWNER_FILE, FolderInUseError, FolderOwner, read_owner
from unisono.callbacks.backup.files.store import BackupStore
from unisono.callbacks.process_identity import ProcessIdentity, this_process
from unisono.commands.backups import main

PATIENCE = 1e4  # seconds that pass only on `clock`


@pytest.fixture(autouse=True)
def clock(stop_clock):
    return stop_clock(owner_module, time.time())


@contextlib.contextmanager
def owning(directory, **arguments):
    owner = FolderOwner(directory, **arguments)
    owner.acquire()
    try:
        yield owner
    finally:
        owner.release()


def claim(directory, process, token="t", host="far", **more):
    owner = {"process": str(process), "host": host, "since": 1e9, "token": token, **more}
    (directory / OWNER_FILE).write_text(json.dumps(owner))


def elsewhere():
    return dataclasses.replace(this_process(), place="00000000")


def test_folder_has_one_owner_in_a_process_until_it_is_released(tmp_path):
    with owning(tmp_path) as owner:
        owner.check()
        with pytest.raises(
            FolderInUseError, match="is in use by another fit of this process since"
        ) as caught:
            FolderOwner(tmp_path).acquire()
        assert str(tmp_path / OWNER_FILE) in str(caught.value) and "to take over" in str(caught.value)
        assert isinstance(caught.value, SaveError)
        assert os.listdir(tmp_path) == [OWNER_FILE]
    assert os.listdir(tmp_path) == []
    with owning(tmp_path):
        pass


def test_owner_on_this_machine_is_judged_by_its_process(tmp_path, capsys):
    with subprocess.Popen(["sleep", "100"]) as process:
        started = process_identity._find_start_time(process.pid)
        name = dataclasses.replace(this_process(), pid=process.pid, started=started)
        claim(tmp_path, name)
        with pytest.raises(FolderInUseError, match=f"process {process.pid} on far since 2001-09-0"):
            FolderOwner(tmp_path).acquire()
        # its process id was reused by a later process
        claim(tmp_path, dataclasses.replace(name, started=started - 1))
        with owning(tmp_path):
            pass
        claim(tmp_path, name)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie: nobody has waited for it
        with owning(tmp_path):
            assert read_owner(tmp_path).host == socket.gethostname()
    assert capsys.readouterr().out == "", "no wait was reported"


def test_command_names_the_owner(tmp_path, capsys):
    with owning(tmp_path):
        assert main([str(tmp_path)]) == 1
        assert "The directory is in use by another fit of this process since" in capsys.readouterr().out
    claim(tmp_path, elsewhere())
    main([str(tmp_path)])
    assert "on far since 2001-09-0" in (said := capsys.readouterr().out) and "which may have exited" in said


def test_own_claim_that_nobody_holds_is_taken_over(tmp_path):
    claim(tmp_path, this_process())
    with owning(tmp_path):
        assert read_owner(tmp_path).token != "t"


def test_owner_elsewhere_is_judged_by_its_sign_of_life(tmp_path, capsys, clock):
    claim(tmp_path, elsewhere())
    began, silent, slept = clock.now, True, []

    def sleep(seconds):
        clock.now += seconds
        slept.append(seconds)
        if not silent and len(slept) == 3:
            os.utime(tmp_path / OWNER_FILE, ns=(0, time.time_ns() + 1))

    clock.sleep, silent = sleep, False
    with pytest.raises(FolderInUseError, match="on far since"):
        FolderOwner(tmp_path, beat=1.0, patience=PATIENCE).acquire()
    assert slept == [0.5] * 3, "the first heartbeat decides"
    assert "waiting up to 10000 s for its heartbeat" in capsys.readouterr().out
    silent, clock.now = True, began
    with owning(tmp_path, patience=PATIENCE):
        assert read_owner(tmp_path).token != "t"
    assert clock.now - began == pytest.approx(PATIENCE), "waits no longer than that"


def test_owner_elsewhere_with_an_old_sign_of_life_is_not_waited_for(tmp_path, capsys):
    claim(tmp_path, elsewhere())
    os.utime(tmp_path / OWNER_FILE, (1.0, 1.0))
    with owning(tmp_path):
        pass
    assert capsys.readouterr().out == ""


def test_owner_elsewhere_that_releases_the_folder_is_not_waited_for_longer(tmp_path, clock):
    claim(tmp_path, elsewhere())
    slept = []
    clock.sleep = lambda seconds: slept.append(seconds) or (tmp_path / OWNER_FILE).unlink()
    with owning(tmp_path, patience=PATIENCE):
        assert len(slept) == 1


@pytest.mark.parametrize("restarts, waits", [(2, False), (1, True), (0, False)])
def test_job_that_slurm_started_again_takes_over_but_not_the_same_attempt(
    tmp_path, monkeypatch, clock, restarts, waits
):
    claim(tmp_path, elsewhere(), run="slurm 7 0", restarts=1)
    for name, value in (("JOB_ID", "7"), ("STEP_ID", "0"), ("RESTART_COUNT", str(restarts))):
        monkeypatch.setenv(f"SLURM_{name}", value)
    slept = []
    clock.sleep = lambda seconds: slept.append(seconds) or (tmp_path / OWNER_FILE).unlink()
    with owning(tmp_path, patience=PATIENCE):
        assert bool(slept) == waits, "a count of 0 says nothing"


EVALUATOR = {"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}


@pytest.mark.parametrize(
    "environ, waits",
    [
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "x"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_RESTART_COUNT": "2"}, True),
        ({"UNISONO_RUN": "slurm 7 0/second attempt"}, False),
        ({"UNISONO_RUN": "slurm 7 0", "TF_CONFIG": json.dumps(EVALUATOR)}, True),
    ],
)
def test_run_is_that_of_a_job_and_its_step_or_of_unisono_run(tmp_path, monkeypatch, clock, environ, waits):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    claim(tmp_path, elsewhere(), run="slurm 7 0")
    slept = []
    clock.sleep = lambda seconds: slept.append(seconds) or (tmp_path / OWNER_FILE).unlink()
    with owning(tmp_path, patience=PATIENCE):
        assert bool(slept) == waits


def test_long_name_of_a_host_is_cut(tmp_path):
    claim(tmp_path, elsewhere(), host="h" * 300)
    assert read_owner(tmp_path).host == "h" * 255
    assert len(str(read_owner(tmp_path))) < 400


def test_owner_that_is_overtaken_while_it_writes_does_not_begin(tmp_path, monkeypatch):
    write = FolderOwner._write
    monkeypatch.setattr(
        FolderOwner,
        "_write",
        lambda self, *given, **more: write(self, *given, **more) or claim(tmp_path, elsewhere()),
    )
    with pytest.raises(FolderInUseError, match="has been taken over by process"):
        FolderOwner(tmp_path).acquire()
    assert read_owner(tmp_path).token == "t"


def test_folder_of_a_fit_that_an_error_ended_is_free(tmp_path):
    runs = [True]
    with owning(tmp_path, runs=lambda: runs[0]):
        with pytest.raises(FolderInUseError):
            FolderOwner(tmp_path).acquire()
        runs[0] = False
        with owning(tmp_path) as second:
            second.check()


def test_owner_does_not_keep_the_claim_of_another_alive_nor_miss_a_folder_that_is_gone(tmp_path):
    folder = tmp_path / "backup"
    folder.mkdir()
    with owning(folder, beat=PATIENCE) as owner:
        claim(folder, elsewhere(), token="other")
        os.utime(folder / OWNER_FILE, ns=(0, 0))
        owner._keep_alive()
        assert (folder / OWNER_FILE).stat().st_mtime_ns == 0
        (folder / OWNER_FILE).unlink()
        folder.rmdir()
        owner.check()  # the save says that


def test_owner_gives_signs_of_life(tmp_path):
    file = tmp_path / OWNER_FILE
    until = time.monotonic() + 60  # far more than a thread needs on a busy machine
    with owning(tmp_path, beat=0.001):
        os.utime(file, ns=(0, 0))
        while file.stat().st_mtime_ns == 0 and time.monotonic() < until:
            time.sleep(0.001)
        assert file.stat().st_mtime_ns > 0


def test_owner_that_was_replaced_writes_nothing_more(tmp_path):
    """For example one that was stopped for long, while another machine took over the folder."""
    with owning(tmp_path) as owner:
        store = BackupStore(tmp_path, 1, owner.check)
        store.write({"i": 1}, {})
        claim(tmp_path, elsewhere(), token="other")
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(SaveError, match=r"has been taken over by process \d+ on far since"):
            store.write({"i": 2}, {})
        assert sorted(os.listdir(tmp_path)) == before
        (tmp_path / OWNER_FILE).unlink()
        checks = iter([lambda: None, owner.check])  # and if it happens during a save
        with pytest.raises(SaveError, match="taken over by an unknown process"):
            BackupStore(tmp_path, 1, lambda: next(checks)()).write({"i": 2}, {})
        assert os.listdir(tmp_path) == ["backup-000001.unisono"]
        claim(tmp_path, elsewhere(), token="other")
    assert read_owner(tmp_path).token == "other", "the other process stays the owner"


WRONG = {
    "empty": b"",
    "deep": b"[" * 4096,
    "other types": b'{"process": 3, "host": [], "since": {}, "token": 1}',
    "huge numbers": b'{"process": "00000000-1-1", "host": "h", "since": 1e308, "token": "t"}',
    "control characters": b'{"process": "00000000-1-1", "host": "\\u001b[2J", "since": 1, "token": "t"}',
}


@pytest.mark.parametrize("content", [*WRONG, "fifo", "folder"])
def test_owner_file_that_is_none_is_replaced_or_rejected(tmp_path, content):
    path = tmp_path / OWNER_FILE
    if content == "fifo":
        os.mkfifo(path)
    elif content == "folder":
        path.mkdir()
    else:
        path.write_bytes(WRONG[content])
    assert str(read_owner(tmp_path)) == "an unknown process"
    if content in ("folder", "deep"):
        with pytest.raises(SaveError):
            FolderOwner(tmp_path).acquire()
        return
    with owning(tmp_path):
        assert read_owner(tmp_path).host == socket.gethostname()


def test_two_that_come_at_the_same_time_are_one_owner(tmp_path):
    """Both see no owner; the file is created once."""
    barrier, taken, refused = threading.Barrier(8), [], []

    def come():
        owner = FolderOwner(tmp_path)
        barrier.wait()
        try:
            owner.acquire()
            taken.append(owner)
        except FolderInUseError as error:
            refused.append(error)

    with in_threads(*[come] * 8):
        pass
    for owner in taken:
        owner.release()
    assert (len(taken), len(refused)) == (1, 7)


def test_names_of_processes_are_read_back():
    name = this_process()
    assert ProcessIdentity.parse(str(name)) == name and name.runs() is True and elsewhere().runs() is None
    for text in ("", "1", "0000000g-1-1", f"{name}0" * 9, str(name).replace("-", " "), str(name) + "\n"):
        assert ProcessIdentity.parse(text) is None
