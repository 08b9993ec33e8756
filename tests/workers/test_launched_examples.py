"""The examples for the launcher run and print their promised output."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(process):
    out, err = process.communicate()
    assert process.returncode == 0, out[-3000:] + err[-6000:]
    return out, err


@pytest.mark.long
def test_example_of_two_workers_is_killed_and_ends(launch_forks, tmp_path):
    program = [EXAMPLES / "two_workers.py", "--folder", tmp_path, "--kill-at", 25]
    out, err = printed(launch_forks("--workers", 2, "--restarts", 1, *program))
    assert "worker-1 failed first: it was killed by SIGKILL" in err
    assert "Resuming from" in out and "weights after 36 steps on 2 replicas: " in out


def test_example_of_parameter_servers_counts_every_step(launch_forks):
    program = [EXAMPLES / "large_embedding.py", "--users", 1000, "--items", 100, "--steps", 20]
    out, _ = printed(launch_forks("--workers", 1, "--parameter-servers", 2, *program))
    assert "10 updates of tables of 0 MB" in out and "among the ten best of 100 items" in out
