"""`launch --restarts`: workers that are killed at random steps end with the bits of the training left alone."""

import random
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

KILLED = Path(__file__).parent / "programs" / "killed.py"
STEPS = 15


def train(launch, folder, *options, kills=()):
    folder.mkdir(exist_ok=True)
    process = launch(*options, KILLED, folder, folder / "backup", *kills)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out[-3000:] + err[-6000:]
    return (folder / "result").read_text(), out, err


def test_chief_and_worker_killed_at_random_steps_end_with_the_same_bits(launch, start_workers, tmp_path):
    alone = start_workers("killed", arguments=[tmp_path / "backup-alone"])
    alone.succeed()
    expected = (alone.out / "result").read_text()
    chooser = random.Random(6)
    first, second = sorted(chooser.sample(range(1, STEPS), 2))
    options = ("--workers", 2, "--restarts", 2, "--timeout", 15)
    result, out, err = train(launch, tmp_path / "killed", *options, kills=[f"0:1:{first}", f"1:0:{second}"])
    assert result == expected
    assert "worker-1 failed first: it was killed by SIGKILL" in err
    assert "worker-0 failed first: it was killed by SIGKILL" in err
    assert out.count("Resuming from") == 2 - (first < 2)


def test_another_number_of_workers_goes_on_from_the_same_backup(launch, start_workers, tmp_path):
    """The global batch stays, so the result differs by the order of sums, and of random numbers, alone."""
    killed = start_workers("killed", arguments=[tmp_path / "backup", "0:1:8"])
    assert killed.processes[1].wait(150) == -signal.SIGKILL
    killed.kill(0)  # as the launcher does
    result, out, _ = train(launch, tmp_path, "--workers", 1, "--replicas-per-worker", 3)
    assert "Resuming from" in out
    assert "Epoch 2/3" in out and "Epoch 1/3" not in out
    assert "'loss': [" in result
