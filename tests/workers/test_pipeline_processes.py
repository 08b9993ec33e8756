"""A pipeline over processes matches a single process; a lost or hanging stage is an error, and a restart resumes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "programs" / "pipeline.py"


@pytest.mark.long
def test_stage_that_dies_and_one_that_stops_are_named_and_restarts_end_with_the_bits_of_one_process(
    launch_forks, tmp_path
):
    process = launch_forks("--timeout", 60, "--stages", 2, "--restarts", 2, PROGRAM, tmp_path)
    pid, _ = _stage(process, _wait_for(tmp_path / "training-0", process), 1)
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "struck-0").touch()
    pid, address = _stage(process, _wait_for(tmp_path / "training-1", process), 1)
    os.kill(pid, signal.SIGSTOP)
    (tmp_path / "struck-1").touch()
    said = _wait_for(tmp_path / "lost-1", process)
    assert f"stage 1 at {address} (/job:worker/task:1) has not answered for 60 s (UNISONO_TIMEOUT)" in said
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "worker-0-stage-1 failed first: it was killed by SIGKILL" in err
    assert "StageError" in err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["devices"][1] == "/job:worker/replica:0/task:1/device:CPU:0"
    assert {home[:10] for home in result["homes"][:6]} == {"/job:local"}
    assert {home[:12] for home in result["homes"][6:]} == {"/job:worker/"}
    assert result["weights"] == result["answers"] == 0.0 and result["history"]
    assert "/job:worker/task:1" in result["summary"]


def _wait_for(path: Path, process) -> str:
    """The content of a file, once it exists."""
    while not path.exists() or not path.read_text():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return path.read_text()


def _stage(process, script: str, number: int) -> tuple[int, str]:
    """The process that serves a stage of this script, and its address; both read the script's list of addresses."""
    environments = process.environments()
    addresses = environments[int(script)]["UNISONO_STAGES"].split(",")
    for pid, environment in environments.items():
        config = json.loads(environment.get("TF_CONFIG", "{}"))
        if config.get("cluster") == {"stage": addresses} and config["task"]["index"] == number - 1:
            return pid, addresses[number - 1]
    raise AssertionError(f"no process serves stage {number} of {addresses}")
