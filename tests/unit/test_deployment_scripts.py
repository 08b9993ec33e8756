"""`docs/deploy/slurm.sh` with an `srun` and a `scontrol` that only note their calls, and the image of the Dockerfile."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs/deploy/slurm.sh"
SRUN = """#!/bin/sh
echo "$@" >> "$CALLS"
for word in "$@"; do last=$word; done
[ "$last" = true ] && exit $PROBE
exit $STATUS
"""


@pytest.mark.parametrize(
    ("status", "nodes_answer", "restarts", "again"),
    [
        (0, True, 0, False),
        (143, True, 0, True),
        (1, True, 0, False),
        (75, True, 0, False),
        (75, False, 0, True),
        (1, False, 0, True),
        (143, True, 20, False),
        (65, False, 0, False),
    ],
)
def test_slurm_script_queues_a_job_again_after_143_and_a_lost_node_only(
    status, nodes_answer, restarts, again, tmp_path
):
    for name, text in (("srun", SRUN), ("scontrol", '#!/bin/sh\necho "$@" > "$NOTE"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "NOTE": str(tmp_path / "note"),
        "CALLS": str(tmp_path / "calls"),
        "CONTAINER": "apptainer exec --nv unisono.sif",
        "STATUS": str(status),
        "PROBE": "0" if nodes_answer else "1",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "17",
        "SLURM_RESTART_COUNT": str(restarts),
    }
    done = subprocess.run(["bash", SCRIPT, "train.py"], env=env, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    first = (tmp_path / "calls").read_text().splitlines()[0]
    assert "--kill-on-bad-exit=0 " in first, (
        "srun reports 143 for tasks that it ends, as for those that saved"
    )
    assert first.endswith(" PYTHONUNBUFFERED=1 apptainer exec --nv unisono.sif python train.py")
    note = tmp_path / "note"
    assert (note.read_text().strip() if note.exists() else "") == ("requeue 17" if again else "")


def test_slurm_script_asks_for_one_task_a_gpu_and_a_signal_before_the_end():
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)", SCRIPT.read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert options["signal"] == "TERM@120" and "requeue" in options


def test_image_contains_what_the_wheel_is_made_of():
    """Everything else is kept out of the context, and so out of the image."""
    root, lines = SCRIPT.parents[2], (SCRIPT.parent / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    packages = {link.name for link in (root / "unisono").iterdir() if link.is_symlink()}
    assert kept == packages | {"unisono", "pyproject.toml", "README.md", "LICENSE"}


@pytest.mark.long
@pytest.mark.clusters
@pytest.mark.process
def test_docker_builds_the_image(tmp_path):
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("there is no Docker daemon")
    build = ["docker", "build", "-q", "-f", "docs/deploy/Dockerfile", "-t", "unisono-test", "."]
    done = subprocess.run(build, cwd=SCRIPT.parents[2], capture_output=True, text=True, timeout=280)
    if "failed to resolve source metadata" in done.stderr:
        pytest.skip("the base image python:3.12-slim cannot be reached")
    assert done.returncode == 0, done.stderr
    done = subprocess.run(["docker", "run", "--rm", "unisono-test"], capture_output=True, text=True)
    assert done.returncode == 0 and "tensorflow" in done.stdout.lower(), done.stdout + done.stderr
