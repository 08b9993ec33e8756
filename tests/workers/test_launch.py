"""`python -m unisono launch` with real processes that do not load TensorFlow."""

import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

OBEY = Path(__file__).parent / "programs" / "obey.py"


def wait_for(path):
    while not path.exists():
        time.sleep(0.02)
    return path.read_text()


def runs(pid):
    """Whether the process has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pid):
    while runs(pid):
        time.sleep(0.02)


def test_failure_is_named_and_all_are_started_again(launch, tmp_path):
    process = launch(
        "--workers", 3, "--restarts", 1, "--log-dir", tmp_path / "logs", OBEY, tmp_path, "fail once"
    )
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "worker-1 failed first: it exited with status 7. The others were stopped." in err
    assert "[launch]     what went wrong" in err
    assert "[worker-2] worker 2 restart 1" in out
    assert (tmp_path / "logs" / "worker-1.log").read_text() == "worker 1 restart 0\nwhat went wrong\n"
    assert (tmp_path / "logs" / "worker-1.restart-1.log").read_text() == "worker 1 restart 1\n"
    wait_for_end((tmp_path / "pid-0-0").read_text())


REPORTS = {  # what the workers do, how many there are, the status of the launcher, and what it prints
    "fail once": (2, 7, "worker-1 failed first: it exited with status 7"),
    "port": (1, 0, "restarting with other ports"),
    "lost": (2, 1, "worker-1 failed first: it hangs or is too slow, as worker-0 found, in <module> ("),
    "early": (2, 1, "worker-1 failed first: it exited early, with status 0, while worker-0 still needed it"),
}


@pytest.mark.parametrize("order", REPORTS)
def test_what_went_wrong_without_restarts_is_named_and_gives_the_status(order, launch, tmp_path):
    workers, status, said = REPORTS[order]
    process = launch("--workers", workers, OBEY, tmp_path, order)
    _, err = process.communicate()
    assert process.returncode == status
    assert said in err
    assert order != "lost" or "the last lines of worker-1:\n[launch]     worker 1 restart 0" in err


def test_killed_worker_ends_the_others_and_is_named(launch, tmp_path):
    process = launch("--workers", 2, OBEY, tmp_path, "wait")
    wait_for(tmp_path / "ready-0")
    wait_for(tmp_path / "ready-1")
    os.kill(int((tmp_path / "pid-0-0").read_text()), signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 128 + 9
    assert "worker-0 failed first: it was killed by SIGKILL" in err
    wait_for_end((tmp_path / "pid-1-0").read_text())


def test_nothing_is_left_when_the_launcher_is_asked_to_end_not_even_daemons(launch, tmp_path):
    process = launch("--workers", 2, OBEY, tmp_path, "children", TMPDIR=str(tmp_path))
    names = ("pid-0-0", "pid-1-0", "child-0", "child-1", "daemon-0", "daemon-1")
    pids = [wait_for(tmp_path / name) for name in names]
    process.terminate()
    process.wait()
    for pid in pids:
        wait_for_end(pid)
    assert not list(tmp_path.glob("unisono-records-*"))


def test_workers_end_when_the_launcher_is_killed(launch, tmp_path):
    process = launch("--workers", 2, OBEY, tmp_path, "wait")
    pids = [wait_for(tmp_path / name) for name in ("pid-0-0", "pid-1-0")]
    assert all(map(runs, pids))
    process.kill()
    for pid in pids:
        wait_for_end(pid)
    assert process.wait() == -signal.SIGKILL and not any(map(runs, pids))


@pytest.mark.parametrize(
    "cluster",
    [["--workers", 2], ["--nnodes", 2, "--node-rank", 0, "--rdzv-endpoint", "127.0.0.1:9", "--restarts", 0]],
    ids=["two here", "one on each of two machines"],
)
def test_worker_that_is_stopped_for_the_timeout_is_named_and_ended(cluster, launch, tmp_path):
    process = launch(*cluster, "--timeout", 1, OBEY, tmp_path, "stop")
    _, err = process.communicate()
    assert process.returncode == 1
    assert "worker-0 failed first: it is stopped (SIGSTOP)" in err
    wait_for_end((tmp_path / "pid-0-0").read_text())


def test_same_error_at_the_same_step_is_not_tried_a_third_time(launch, tmp_path):
    process = launch("--workers", 1, "--restarts", 5, OBEY, tmp_path, "same")
    _, err = process.communicate()
    assert process.returncode == 1
    assert "restarting all processes in 1 s, restart 1 of 5" in err
    assert "the same error at the same step" in err and "restart 2" not in err
    assert "raised ValueError: file " in err and ", at epoch 1, step 7. The others were stopped." in err


def test_taken_endpoint_is_not_tried_again_with_other_ports(launch, tmp_path):
    machines = ("--nnodes", 2, "--node-rank", 0, "--nproc-per-node", 1, "--rdzv-endpoint", "127.0.0.1:1")
    process = launch(*machines, "--restarts", 0, OBEY, tmp_path, "endpoint")
    _, err = process.communicate()
    assert process.returncode == 1 and "other ports" not in err
    assert "in use by another process" in err and "starting" not in err


def test_run_whose_backups_another_run_has_taken_over_is_not_started_again(launch, tmp_path):
    """It would take them back from the second attempt of the same job, which would fail in its turn."""
    process = launch("--workers", 1, "--restarts", 3, OBEY, tmp_path, "taken")
    _, err = process.communicate()
    assert process.returncode == 1
    assert "raised FolderInUseError: backup has been taken over by process 1 on other" in err
    assert "another run uses this directory of backups: not restarting" in err and "restart 1" not in err


def test_run_whose_backups_are_damaged_is_not_started_again(launch, tmp_path):
    process = launch("--workers", 1, "--restarts", 3, OBEY, tmp_path, "damaged")
    _, err = process.communicate()
    assert process.returncode == 65
    assert "a restart would find the same backups: not restarting" in err and "restart 1" not in err


def test_noise_of_a_worker_is_passed_on_without_what_commands_a_terminal(launch, tmp_path):
    process = launch("--workers", 1, "--log-dir", tmp_path / "logs", OBEY, tmp_path, "noise")
    out, err = process.communicate()
    assert process.returncode == 5
    printed = out + err
    assert not set(printed) & {chr(code) for code in [*range(9), *range(11, 32), *range(127, 160)]}
    assert "[worker-0] 20%\n" in out and "title" not in printed
    assert out.count("[worker-0] line\n") == 200_000 and out.endswith("[worker-0] half\n")
    assert len(err) < 30_000  # only the last lines are kept
    assert b"\x1b]0;title\x07" in (tmp_path / "logs" / "worker-0.log").read_bytes()


def test_signals_are_passed_on_and_a_good_end_is_a_good_end(launch, tmp_path):
    process = launch("--workers", 2, OBEY, tmp_path, "signal")
    wait_for(tmp_path / "ready-0")
    wait_for(tmp_path / "ready-1")
    process.send_signal(signal.SIGUSR1)
    wait_for(tmp_path / "SIGUSR1-0")
    wait_for(tmp_path / "SIGUSR1-1")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert process.returncode == 0
    for line in ("[worker-0] SIGUSR1", "[worker-1] SIGUSR1", "[worker-0] SIGTERM", "[worker-1] SIGTERM"):
        assert line in out


def test_worker_that_ignores_the_signal_is_killed_after_its_grace(launch, tmp_path):
    process = launch("--workers", 2, "--grace", 1, OBEY, tmp_path, "stubborn")
    wait_for(tmp_path / "ready-0")
    wait_for(tmp_path / "ready-1")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 128 + 15
    assert "did not exit after SIGTERM" in err
    wait_for_end((tmp_path / "pid-1-0").read_text())
