"""Workers killed at random steps match an uninterrupted run bit for bit, with the launcher and without."""

import random
import shutil
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

KILLED = Path(__file__).parent / "programs" / "killed.py"
STEPS = 15


def test_chief_and_worker_killed_at_random_steps_end_with_the_same_bits(
    launch_forks, start_workers, tmp_path
):
    alone = start_workers("killed", arguments=[tmp_path / "backup-alone"])
    alone.succeed()
    expected = (alone.out / "result").read_text()
    first, second = sorted(random.Random(5).sample(range(6, STEPS), 2))
    backup = tmp_path / "backup"

    killed = start_workers("killed", arguments=[backup, f"0:1:{first}"])
    assert killed.processes[1].wait() == -signal.SIGKILL
    killed.kill(0)  # as the launcher does
    shutil.copytree(backup, tmp_path / "backup-for-one")

    process = launch_forks("--workers", 2, "--restarts", 1, KILLED, tmp_path, backup, f"0:0:{second}")
    out, err = process.communicate()
    assert process.returncode == 0, out[-3000:] + err[-6000:]
    assert (tmp_path / "result").read_text() == expected
    assert "worker-0 failed first: it was killed by SIGKILL" in err
    assert out.count("Resuming from") == 2

    # Another number of workers resumes too: the global batch stays the same, only all-reduces and random numbers differ.
    one = start_workers("killed", count=1, replicas=3, arguments=[tmp_path / "backup-for-one"])
    (ended,) = one.succeed()
    assert "Resuming from" in ended.out
    assert "Epoch 3/3" in ended.out and "Epoch 1/3" not in ended.out
    assert "'loss': [" in (one.out / "result").read_text()
