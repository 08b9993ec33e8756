"""A pipeline over processes: the numbers of one process, and an error when a stage dies."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "programs" / "pipeline.py"


def test_stages_in_two_processes_have_the_numbers_of_one(launch, tmp_path):
    process = launch("--stages", 2, PROGRAM, tmp_path)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["devices"][1] == "/job:worker/replica:0/task:1/device:CPU:0"
    assert {home[:10] for home in result["homes"][:6]} == {"/job:local"}
    assert {home[:12] for home in result["homes"][6:]} == {"/job:worker/"}
    assert result["weights"] == result["answers"] == result["loss"] == 0.0
    assert "/job:worker/task:1" in result["summary"]


def test_dead_stage_is_an_error_within_a_minute(launch, tmp_path):
    process = launch("--stages", 2, PROGRAM, tmp_path, "wait")
    until = time.monotonic() + 200
    while not (tmp_path / "training").exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.1)
    script = int((tmp_path / "training").read_text())
    os.kill(_sibling(script), signal.SIGKILL)
    killed = time.monotonic()
    _, err = process.communicate(timeout=90)
    assert process.returncode != 0
    assert time.monotonic() - killed < 60
    assert "worker-0-stage-1" in err


def _sibling(script: int) -> int:
    """The process that serves stage 1 of this script: its environment holds the script's address list."""
    addresses = _environment(script)["UNISONO_STAGES"]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != script:
            found = _environment(int(entry.name)).get("TF_CONFIG", "")
            if addresses in found and '"stage"' in found:
                return int(entry.name)
    raise AssertionError(f"no process serves {addresses}")


def _environment(pid: int) -> dict[str, str]:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
